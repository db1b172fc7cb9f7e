"""What several commands share: arguments, exit codes, output, and the servers that they ask."""
