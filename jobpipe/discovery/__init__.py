"""Where the net meets the registry: which handler the configuration names, and where a topic is served."""

from jobpipe.discovery.handler import map_registry_errors, open_handler
from jobpipe.discovery.locate import Location, TopicLocator, locate

__all__ = ["Location", "TopicLocator", "locate", "map_registry_errors", "open_handler"]
