"""Commands of an operator: servers, certificates, and the configuration."""
