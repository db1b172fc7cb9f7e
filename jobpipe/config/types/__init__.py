"""The types that values of keys and options have: parsing, bounds, messages."""
