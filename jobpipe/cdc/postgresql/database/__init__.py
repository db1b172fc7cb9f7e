"""What PostgreSQL has, and must have: its catalog, types of columns, settings, slots."""
