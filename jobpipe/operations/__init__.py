"""What peers may ask, in one place: each operation's request with the check of each of its fields, and its roles.

A request is a frozen dataclass. Its fields are annotated with what a value from outside may be, so that every value is
checked before anything else is done with it: also before the access list is asked, and before it is logged or kept.

::

    fields.py       the checks: numbers, texts, names, positions, lists
    table.py        an operation, and how a request is read
    hello.py        the fields of HELLO
    control.py      the coordinator's operations
    data.py         the data process's
    hostserver.py   the host server's
"""
