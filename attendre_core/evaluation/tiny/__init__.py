"""Two tiny models that ship with the package, and the code that trained them on short inputs."""
