"""Pipelines: jobs that are chained by topics, declared in one YAML file; its checks, plug-ins and graph.

This package knows nothing of the control server. Nothing else of jobpipe but the command line imports it.
"""
