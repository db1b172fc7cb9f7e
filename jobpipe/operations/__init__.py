"""What peers may ask, in one place: each operation's request and reply, the check of each of their fields, its roles.

Both are frozen dataclasses. Their fields are annotated with what a value from outside may be, so that every value is
checked before anything else is done with it: a request's also before the access list is asked, and before it is logged
or kept; a reply's before anything relies on it, since a server is a peer too.

::

    values.py           the checks: numbers, texts, names, positions, lists
    fields.py           a message: its JSON form, both ways
    table.py            an operation, and how a request is read
    hello.py            the fields of HELLO
    publishing.py       what publishers ask of the coordinator
    subscribing.py      what subscribers ask of it
    reading.py          what readers ask of it, subscribers too
    administration.py   what administrators ask of it
    ranges.py           what several replies hold
    control.py          the coordinator's operations, in one table
    data.py             the data process's
    hostserver.py       the host server's
    calls.py            sends a request, returns its reply
    page.py             makes the tables in docs/protocol.md
"""
