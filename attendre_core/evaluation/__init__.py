"""Does a memory work, and which policy and sizes are good? Tasks, controls, measurements."""
