"""The host server: keeps and serves segments on the host that wrote them; outlives the applications there."""
