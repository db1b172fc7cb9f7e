"""The plug-in API: sources, transforms, sinks, launchers, schedule engines; discovery and help."""
