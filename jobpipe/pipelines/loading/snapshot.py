"""What an attempt is started with: the pipeline as it was then, and which attempt of which job it is.

A file that is edited while a job runs changes nothing of the attempt: only the next one. No secrets are in it, but
references to them.
"""

from __future__ import annotations

import base64
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.loader import load_tree, without_engines
from jobpipe.pipelines.model.paths import write_private
from jobpipe.pipelines.model.pipeline import Pipeline

_PREFIX = "snapshot:"  # of one that is an argument; a path that begins so is given as ./snapshot:…
_MOST_BYTES = 16 * 1024 * 1024


class ParentProcess(BaseModel):
    """A process with which an attempt ends, as :func:`jobpipe_registry.host.process_identity.lives` knows it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int = Field(ge=1, lt=2**31)
    started: float = Field(allow_inf_nan=False)
    ticks: int = Field(ge=0)


class Snapshot(BaseModel):
    """One attempt.

    Attributes:
        file: of the pipeline, for messages.
        folder: where its relative paths start.
        tree: of the file, parameters put in.
        run, lower, upper: the run's id and bounds.
        attempt: its number.
        storage: where this job's checkpoint is.
        config: the file of jobpipe's configuration; None: found as always.
        stop_seconds: how long a stop may take; after half of it a micro-batch is not waited for any more.
        parent: the attempt stops when that process has ended; None: it lives on.
        report: the file where it tells how far it is; None: no program of this host reads it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path
    folder: Path
    tree: dict[str, Any]
    job: str = Field(min_length=1, max_length=40)
    run: str = Field(min_length=1, max_length=128)
    lower: datetime | int | None = None
    upper: datetime | int | None = None
    attempt: int = Field(ge=1, le=10**9)
    storage: str = Field(min_length=1)
    config: Path | None = None
    stop_seconds: float = Field(gt=0, le=86_400)
    parent: ParentProcess | None = None
    report: Path | None = None

    @property
    def values(self) -> RunValues:
        """What the run's texts may name."""
        return RunValues(self.run, self.lower, self.upper)

    def pipeline(self) -> Pipeline:
        """Return the checked pipeline.

        Raises:
            PipelineError: it is not right here.
        """
        return load_tree(without_engines(self.tree), file=self.file, folder=self.folder)

    def write(self, path: Path) -> None:
        """Write it whole or not at all, readable by its owner alone."""
        write_private(path, self.model_dump_json().encode())

    @classmethod
    def read(cls, path: Path) -> Snapshot:
        """Read it.

        Raises:
            ConfigError: it cannot be read, or is none.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{path} is not a snapshot of an attempt: {error}", file=str(path)) from error

    def argument(self) -> str:
        """Return it as an argument of a program on another host: one word of ASCII, which may be shown."""
        return _PREFIX + base64.urlsafe_b64encode(zlib.compress(self.model_dump_json().encode(), 9)).decode()

    @staticmethod
    def is_argument(text: str) -> bool:
        """Whether a text is a snapshot itself, not the path of one."""
        return text.startswith(_PREFIX)

    @classmethod
    def from_argument(cls, text: str) -> Snapshot:
        """Read what :meth:`argument` made.

        Raises:
            ConfigError: it is none.
        """
        try:
            packed = zlib.decompressobj()
            whole = packed.decompress(base64.urlsafe_b64decode(text.removeprefix(_PREFIX)), _MOST_BYTES)
            if not packed.eof:
                raise ValueError("its end is missing, or it is too long")
            return cls.model_validate_json(whole)
        except (ValueError, zlib.error) as error:
            raise ConfigError(f"{text[:40]}… is not a snapshot of an attempt: {str(error)[:500]}") from error
