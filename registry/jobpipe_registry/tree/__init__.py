"""The registry on any tree of nodes."""
