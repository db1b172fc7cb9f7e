"""Writes the tables of docs/protocol.md: ``python -m jobpipe.operations.protocol_page docs/protocol.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path

from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.data_operations import DATA, KeptPart, PartHeader
from jobpipe.operations.host_operations import HOSTSERVER
from jobpipe.operations.messages.checked_values import Check, Entries, Items
from jobpipe.operations.messages.message_fields import Fields, Nested, checks
from jobpipe.operations.messages.operation import EVERYBODY, Operation, Table
from jobpipe.wire.wire_messages import ROLES

BEGIN = "<!-- made from the definitions in jobpipe/operations by `make docs`; do not edit -->\n"
END = "<!-- end of what is made -->\n"
SERVERS: tuple[tuple[str, Table], ...] = (("coordinator", CONTROL), ("data process", DATA), ("host server", HOSTSERVER))


def operations_page() -> str:
    """Return the tables: the operations of each server, and the objects in their requests and replies."""
    nested: dict[str, type[Fields]] = {}
    lines = []
    for server, table in SERVERS:
        lines += [f"Of the {server}:\n", "| operation | asked by | request | reply |", "|---|---|---|---|"]
        lines += [_row(operation, nested) for operation in table.values()]
        lines.append("")
    lines += ["Objects in them, and the header of a PART that answers `fetch`:\n", "| object | fields |", "|---|---|"]
    objects = [_object("PART of `fetch`", PartHeader, nested), _object("PART of `fetch`, besides", KeptPart, nested)]
    done: set[str] = set()
    while waiting := sorted(nested.keys() - done):
        for name in waiting:
            done.add(name)
            objects.append(_object(name, nested[name], nested))
    return "\n".join([*lines, *sorted(objects), ""])


def with_operations(page: str) -> str:
    """Return a page with the tables in the place of those that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{operations_page()}\n{END}{after}"


def _row(operation: Operation[Fields], nested: dict[str, type[Fields]]) -> str:
    roles = "all" if operation.roles == EVERYBODY else ", ".join(role for role in ROLES if role in operation.roles)
    request, reply = (", ".join(_fields(kind, nested)) or "-" for kind in (operation.request, operation.reply))
    return f"| `{operation.name}` | {roles} | {request} | {reply} |"


def _object(name: str, kind: type[Fields], nested: dict[str, type[Fields]]) -> str:
    return f"| {name} | {', '.join(_fields(kind, nested))} |"


def _fields(kind: type[Fields], nested: dict[str, type[Fields]]) -> Iterator[str]:
    for name, check in checks(kind).items():
        optional = kind.__dataclass_fields__[name].default is not MISSING
        yield f"`{name}`{'?' if optional else ''}{_of(check, nested)}"


def _of(check: Check, nested: dict[str, type[Fields]]) -> str:
    if isinstance(check, Items):
        return " list" + _of(check.each, nested)
    if isinstance(check, Entries):
        return " by name" + _of(check.each, nested)
    if isinstance(check, Nested):
        nested[check.kind.__name__] = check.kind
        return f" {check.kind.__name__}"
    return ""


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_operations(file.read_text(encoding="utf-8")), encoding="utf-8")
