"""Links over TCP and TLS, and their servers."""
