"""Topics that are served for more than one process, or without their publisher."""
