"""The options of reading and writing, parsed and checked together."""
