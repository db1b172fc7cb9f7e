"""The server as a process: its program, the one of this home, and the environment of its jobs."""
