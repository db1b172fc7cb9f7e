"""Service discovery: resolves topics and host servers to endpoints by the configured registry."""
