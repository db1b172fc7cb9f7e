"""Change data capture beside Debezium's engine."""
