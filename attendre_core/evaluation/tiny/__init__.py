"""Two tiny models, trained here on short inputs without any memory, and how they are made."""
