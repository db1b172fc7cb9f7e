"""Where the net meets the registry: which handler the configuration names, and where a topic is served."""
