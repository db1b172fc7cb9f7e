"""The ledger for people: the state of each hop and minute, and differences in words."""
