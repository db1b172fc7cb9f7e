"""Pages that ask coordinators, each with what it asks."""
