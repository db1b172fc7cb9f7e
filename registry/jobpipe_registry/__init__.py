"""The registry: which topics and jobs there are, and where they are served."""
