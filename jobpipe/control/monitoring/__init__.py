"""What the control server knows, for metrics, and what it watches: differences in the ledger."""
