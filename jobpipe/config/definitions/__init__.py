"""The definition of every key, option and argument: name, type, default, documentation."""
