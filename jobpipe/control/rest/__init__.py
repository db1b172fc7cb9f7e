"""REST: routes, handlers, authentication, server-sent events, and the client."""
