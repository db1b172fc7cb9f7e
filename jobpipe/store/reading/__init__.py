"""From offsets and limits to the ranges that a reader gets."""
