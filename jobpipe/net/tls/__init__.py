"""TLS: contexts, certificates, keys, revocation."""
