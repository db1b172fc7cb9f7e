"""Links: the client's end, asynchronous and blocking; sockets, keepalive, timeouts."""
