"""A lineage backend on loopback, and what tests of lineage read of events."""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

from openlineage.client import facet_v2
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import BaseFacet

from jobpipe.config import Config, load
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.pipeline import Pipeline
from tests.pipelines.waiting import DEADLINE

ENDS = ("COMPLETE", "FAIL", "ABORT")


class Backend:
    """Answers with given statuses, the last one for ever; while the gate is not set it does not answer.

    Attributes:
        got: (path, headers, event) of each request.
    """

    def __init__(self, *statuses: int, port: int = 0) -> None:
        self.got: queue.Queue[tuple[str, Mapping[str, str], dict[str, Any]]] = queue.Queue()
        self.gate = threading.Event()
        self.gate.set()
        left = list(statuses or (201,))

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.got.put((handler.path, dict(handler.headers), json.loads(body)))
                assert self.gate.wait(DEADLINE)
                status = left.pop(0) if len(left) > 1 else left[0]
                handler.send_response(status)
                if status == 302:
                    handler.send_header("Location", f"http://127.0.0.1:{self.port}/elsewhere")
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(handler, *args: Any) -> None:  # noqa: N805
                pass

            def handle(handler) -> None:  # noqa: N805
                try:
                    super().handle()
                except ConnectionError:  # the client was cut
                    return

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def next(self) -> dict[str, Any]:
        """Wait for a request; return its event."""
        return self.got.get(timeout=DEADLINE)[2]

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def config_of(folder: Path, **lineage: str) -> Config:
    """Return a configuration with these keys of ``server.lineage``."""
    given = {f"jobpipe.server.lineage.{key}": value for key, value in lineage.items()}
    found = load(overrides={"jobpipe.home": str(folder / "home"), **given}, environ={})
    return dataclasses.replace(found, registry_connect="zk2:2181,zk1:2181/chroot")


def pipeline_of(folder: Path, jobs: Mapping[str, Any], **section: Any) -> Pipeline:
    """Return a checked pipeline of these jobs."""
    tree = {"pipeline": {"name": "shop", **section}, "jobs": jobs}
    return load_tree(tree, file=folder / "pipeline.yaml", folder=folder)


def events_of(file: Path) -> list[dict[str, Any]]:
    """Return the events of a lineage file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def kinds(events: list[dict[str, Any]], job: str) -> list[str]:
    """Return the types of a job's events, in order."""
    return [each["eventType"] for each in events if each["job"]["name"] == job]


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return namespaces and names."""
    return [(each["namespace"], each["name"]) for each in datasets]


def made_of(dataset: Mapping[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """Return of which columns each column is made: dataset, column and subtype."""
    fields = dataset["facets"]["columnLineage"]["fields"]
    return {
        name: [
            (each["name"], each["field"], way["subtype"])
            for each in found["inputFields"]
            for way in each["transformations"]
        ]
        for name, found in fields.items()
    }


def ended(file: Path, job: str) -> Callable[[], bool]:
    """Return what tells whether a run of a job has ended, by its events."""
    return lambda: any(kind in ENDS for kind in kinds(events_of(file), job))


def as_client_has_it(event: Mapping[str, Any]) -> RunEvent:
    """Return an event by the classes of OpenLineage's client, which check it; all fields of all facets are theirs."""
    return RunEvent(
        eventType=RunState(event["eventType"]),
        eventTime=event["eventTime"],
        producer=event["producer"],
        run=Run(event["run"]["runId"], _facets(event["run"], "facets")),
        job=Job(event["job"]["namespace"], event["job"]["name"], _facets(event["job"], "facets")),
        inputs=[
            InputDataset(
                each["namespace"],
                each["name"],
                facets=_facets(each, "facets"),
                inputFacets=_facets(each, "inputFacets"),
            )
            for each in event["inputs"]
        ],
        outputs=[
            OutputDataset(
                each["namespace"],
                each["name"],
                facets=_facets(each, "facets"),
                outputFacets=_facets(each, "outputFacets"),
            )
            for each in event["outputs"]
        ],
    )


def _facets(owner: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = {}
    for name, facet in (owner.get(key) or {}).items():
        kind = _FACETS[facet["_schemaURL"]]
        found[name] = kind(**{field: value for field, value in facet.items() if not field.startswith("_")})
    return found


def _facets_of_client() -> dict[str, Any]:
    modules = (getattr(facet_v2, name) for name in facet_v2.__all__)
    kinds = [kind for module in modules if isinstance(module, ModuleType) for kind in vars(module).values()]
    return {kind._get_schema(): kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseFacet)}


_FACETS = _facets_of_client()
