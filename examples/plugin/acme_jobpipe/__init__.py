"""Plug-ins for jobpipe's pipelines: transform ``slug`` and sink ``sqlite``."""
