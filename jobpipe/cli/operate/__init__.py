"""Commands of an operator: servers, certificates, the configuration, and the demo."""
