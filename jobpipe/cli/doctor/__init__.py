"""``jobpipe doctor``: checks of this machine, the configuration and the registry."""
