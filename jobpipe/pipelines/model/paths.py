"""Where the files of a pipeline are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.file_paths import absolute, local_folder
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe_registry.host.local_files import write_whole


def write_private(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file and its folder, for their owner alone; the file whole or not at all.

    Args:
        durable: it is there after a power cut, too; else it may then be empty, or the one before.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, content, durable=durable)


@dataclass(frozen=True)
class PipelinePaths:
    """The folders of one pipeline below a home.

    Attributes:
        folder: of its own; by default the checkpoints are there, each job's under its name.
        logs: a log for each job.
    """

    folder: Path
    logs: Path

    @classmethod
    def of(cls, home: Path, pipeline: str) -> PipelinePaths:
        """Return those of a pipeline."""
        return cls(home / "pipelines" / pipeline, home / "logs" / "pipelines" / pipeline)

    @property
    def lock(self) -> Path:
        """The file that a run in the foreground keeps locked. No job has such a name."""
        return self.folder / ".run.lock"

    def keep_prefix(self, pipeline: Pipeline) -> None:
        """Note the topic prefix next to the checkpoints, which go on from where the topics with that prefix stand.

        Where the storage is no folder of this host, the note is among the pipeline's own files.

        Raises:
            ConfigError: another prefix was noted, or the note cannot be written.
        """
        self.require_prefix(pipeline)
        note = self._prefix_note(pipeline)
        try:
            if not _noted(note):  # or a power cut left it empty
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text(f"{pipeline.spec.topic_prefix}\n")
        except OSError as error:
            raise ConfigError(f"{note} cannot be written: {error}; give another storage", key="storage") from error

    def require_prefix(self, pipeline: Pipeline) -> None:
        """Check that the checkpoints are of topics with the pipeline's prefix, as far as that was noted.

        Raises:
            ConfigError: another prefix was noted, or the note cannot be read.
        """
        prefix, note = pipeline.spec.topic_prefix, self._prefix_note(pipeline)
        try:
            before = _noted(note)
        except OSError as error:
            raise ConfigError(f"{note} cannot be read: {error}; give another storage", key="storage") from error
        if before and before.strip() != prefix:
            raise ConfigError(
                f"topic-prefix is {prefix!r}, and the checkpoints in {note.parent} are of topics with "
                f"{before.strip()!r}: rows that those have would not be published again; give each environment a "
                f"pipeline.name of its own, and a storage, if the file names one. If the prefix has changed for good, "
                f"delete {note}, and the checkpoints too if all rows are to be published again",
                key="topic-prefix",
            )

    def _prefix_note(self, pipeline: Pipeline) -> Path:
        return local_folder(self.storage(pipeline, ".topic-prefix")) or self.folder / ".topic-prefix"

    def snapshot(self, job: str, attempt: int) -> Path:
        """Return the file that an attempt is started with."""
        return self.folder / ".attempts" / f"{job}-{attempt}.json"

    def report(self, job: str, attempt: int) -> Path:
        """Return the file in which an attempt on this host tells how far it is."""
        return self.folder / ".attempts" / f"{job}-{attempt}.report.json"

    def log(self, job: str) -> Path:
        return self.logs / f"{job}.log"

    def storage(self, pipeline: Pipeline, job: str) -> str:
        """Return where a job's checkpoint is, a URI."""
        return self.storage_in(pipeline.spec.storage, pipeline.folder, job)

    def storage_in(self, given: str | None, folder: Path, job: str) -> str:
        """As :meth:`storage`, of a file in ``folder`` that has this ``storage``."""
        where = str(self.folder) if given is None else absolute(given, folder)
        return f"{where if ':' in where.split('/')[0] else f'file://{where}'}/{job}"


def _noted(note: Path) -> str:
    return note.read_text() if note.exists() else ""


def require_clearable(storage: str, job: str) -> None:
    """Check that a job's checkpoint can be moved out of the way from here.

    Raises:
        ConfigError: it is not on this host's files.
    """
    if local_folder(storage) is None:
        raise ConfigError(
            f"--new-checkpoint {job}: {storage} is not a folder of this host; stop the job, move what is there away, "
            "and submit it without the option",
            key="storage",
        )


def clear_storage(storage: str, run: str) -> str | None:
    """Move a job's checkpoint out of the way of a run that begins without; return its new place, None if it has none.

    Raises:
        ConfigError: it is not on this host's files, or cannot be moved.
    """
    folder = local_folder(storage)
    if folder is None:
        raise ConfigError(f"{storage} is not a folder of this host: remove the checkpoint there by hand", key="storage")
    aside = folder.with_name(f"{folder.name}.before-{run}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return str(aside) if aside.exists() else None  # done before a kill
    except OSError as error:
        raise ConfigError(f"{folder} cannot be moved to {aside}: {error}", key="storage") from error
    return str(aside)
