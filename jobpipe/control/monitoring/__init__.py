"""What the control server knows, for metrics."""
