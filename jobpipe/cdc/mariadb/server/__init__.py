"""What a capture asks of the server: tables, types, settings, and how far its log goes."""
