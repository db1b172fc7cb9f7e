"""The OpenAPI document, and the table of docs/rest.md: ``python -m jobpipe.control.rest.openapi docs/rest.md``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

import jobpipe
from jobpipe.control.rest.problem_json import PROBLEM, ProblemDocument
from jobpipe.control.rest.routing_table import Query, Route
from jobpipe.jobs.storage.job_rows import Event

_REF = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The request, or what it names, is wrong.",
    "401": "The request is not authenticated.",
    "403": "The caller lacks the right, or the request comes from another site's page.",
    "404": "What the request names does not exist.",
    "409": "The request does not fit the present state.",
    "503": "The server cannot answer now; try again.",
}


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document (OpenAPI 3.1, whose schemas are JSON Schema)."""
    wanted: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        ("problem", "serialization", TypeAdapter(ProblemDocument)),
        ("event", "serialization", TypeAdapter(Event)),
    ]
    for route in routes:
        if route.body is not None:
            wanted.append((f"{route.name} body", "validation", TypeAdapter(route.body)))
        if route.reply is not None:
            wanted.append((f"{route.name} reply", "serialization", TypeAdapter(route.reply)))
    made, shared = TypeAdapter.json_schemas(wanted, ref_template=_REF)
    schemas = {name: schema for (name, _), schema in made.items()}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jobpipe server",
            "version": jobpipe.__version__,
            "description": "Pipelines of Spark jobs: submit, inspect, stop, start. Changes need the right `operate`.",
        },
        "paths": paths,
        "components": {
            "schemas": shared.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}},
        },
        "security": [{"token": []}, {"certificate": []}],
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    parts = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _parts(route)]
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*parts, *map(_parameter, route.query)],
        "responses": {
            str(route.status): {"description": "Done.", **_content(route, schemas)},
            **{
                status: {"description": about, "content": {PROBLEM: {"schema": schemas["problem"]}}}
                for status, about in _ERRORS.items()
            },
        },
    }
    if route.body is not None:
        content = {"application/json": {"schema": schemas[f"{route.name} body"]}}
        found["requestBody"] = {"required": True, "content": content}
    if route.right is None:
        found["security"] = []
    return found


def _content(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.media != "application/json":
        return {"content": {route.media: {"schema": {"type": "string"}}}}
    return {} if route.reply is None else {"content": {route.media: {"schema": schemas[f"{route.name} reply"]}}}


def _parts(route: Route) -> list[str]:
    return re.findall(r"\{(\w+)\}", route.path)


def _parameter(query: Query) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": query.kind.value}
    if query.default is not None:
        schema["default"] = query.default
    if query.most:
        schema |= {"minimum": query.least, "maximum": query.most}
    if query.choices:
        schema["enum"] = list(query.choices)
    return {"name": query.name, "in": "query", "description": query.about, "schema": schema}


BEGIN = "<!-- made from the table of routes by `make docs`; do not edit -->\n"
END = "<!-- end of what is made -->\n"


def with_routes(page: str, routes: Sequence[Route]) -> str:
    """Return a page with the table of routes in the place of the one that it has."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    rows = ["| request | right | what it does | parameters |", "|---|---|---|---|"]
    for route in routes:
        given = "; ".join(f"`{query.name}`: {query.about.rstrip('.')}" for query in route.query)
        body = "" if route.body is None else f"body: {route.body.__name__}"
        right = "-" if route.right is None else f"`{route.right}`"
        told = "; ".join(filter(None, (given, body)))
        rows.append(f"| `{route.method} {route.path}` | {right} | {' '.join(route.summary.split())} | {told} |")
    table = "\n".join(rows)
    return f"{before}{BEGIN}\n{table}\n\n{END}{after}"


if __name__ == "__main__":
    from jobpipe.control.rest.routing_table import ROUTES

    _file = Path(sys.argv[1])
    _file.write_text(with_routes(_file.read_text(), ROUTES))
