"""The operations of all servers: request, reply, validation of each field, and the roles that may call.

Requests and replies are frozen dataclasses. Their fields are annotated with what a value from outside may be, so that
every value is checked before anything else is done with it: a request's also before the access list is asked, and
before it is logged or kept; a reply's before anything relies on it, since a server is a peer too.
"""
