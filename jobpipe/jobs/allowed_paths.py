"""The folders in which submitted pipelines may have their files.

Anyone who may submit can run code as the server's user anyway. This keeps away mistakes, and folders in which others
could put modules for the next attempt.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from jobpipe.config import Config
from jobpipe.config.reading.file_permissions import UntrustedFolder, distrusted_level
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.file_paths import absolute
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.model.pipeline import Pipeline

_FILE = re.compile(r"file:/*", re.IGNORECASE)
_MOST_LINKS = 40  # as Linux follows
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class AllowedPaths:
    """Some folders; links are followed before anything is compared.

    They were named on purpose, so the owner of each is trusted in it.

    Args:
        config_file: where the server's configuration was read from, for messages; None: it has none.
    """

    def __init__(self, folders: Sequence[Path], config_file: Path | None = None) -> None:
        self._config_file = config_file
        self.folders = tuple(Path(os.path.realpath(folder)) for folder in folders)

    @classmethod
    def of(cls, config: Config, config_file: Path | None = None) -> AllowedPaths:
        """Return those of the configuration, or the default."""
        home = Path(os.path.expanduser("~"))  # stays as it is for a user without one
        usual = (config.home,) if home.parts[0] == "~" else (home, config.home)
        return cls(config.server_roots or usual, config_file)

    def holds(self, path: Path) -> bool:
        """Whether a path, which need not be there, lies in one of them."""
        return self._holds(Path(os.path.realpath(path)))

    def _holds(self, real: Path) -> bool:
        return any(real.is_relative_to(folder) for folder in self.folders)

    def folder(self, folder: Path) -> Path:
        """Return a pipeline's folder without links, so that none of them can be changed later.

        Raises:
            ConfigError: it lies in none of these folders, or is none.
        """
        if not self.holds(folder):
            what = f"the pipeline's folder {folder} {self._outside}"
            raise ConfigError(f"{what}; {self._remedy(folder)}", folder=str(folder))
        real = Path(os.path.realpath(folder))
        if not real.is_dir():
            what = f"the pipeline's folder {folder} is not a folder of the server's host"
            raise ConfigError(f"{what}; copy the pipeline there, or share the folder", folder=str(folder))
        return real

    def problems(self, pipeline: Pipeline) -> Iterator[Problem]:
        """Yield what of a pipeline lies outside, or where others than the server's user can change it.

        Raises:
            OSError: a folder cannot be looked at, which may pass: its file system does not answer, for instance.
        """
        reported = set()
        for key, path, has_modules in _places(pipeline):
            *folders, real = _way(path)
            if not self._holds(real):
                yield Problem(str(pipeline.file), None, key, f"{path} {self._outside}", self._remedy(path.parent))
                continue
            looked_at = [self._distrusted_level(each, False) for each in folders]
            looked_at.append(self._distrusted_level(real, has_modules))
            found = next((each for each in looked_at if each is not None), None)
            if found is not None and found not in reported:
                reported.add(found)
                what = f"others could have changed {found.path}: {found.why}"
                yield Problem(str(pipeline.file), None, key, what, found.remedy)

    def _distrusted_level(self, real: Path, has_modules: bool) -> UntrustedFolder | None:
        """Return the first folder down to a path without links that others can change; a root's owner is trusted."""
        tops = [folder for folder in self.folders if real.is_relative_to(folder)]
        if not tops:
            return None
        owners = set()
        for top in tops:
            with contextlib.suppress(FileNotFoundError):
                owners.add(top.stat().st_uid)
        outermost = min(tops, key=lambda folder: len(folder.parts))
        return distrusted_level(real, outermost, owners=owners, has_modules=has_modules)

    @property
    def _outside(self) -> str:
        return f"lies outside {', '.join(map(str, self.folders))} (after links are resolved)"

    def _remedy(self, folder: Path) -> str:
        """Return what to do: the line of YAML, the file for it, the command."""
        listed = ",".join(str(each) for each in (*self.folders, Path(os.path.realpath(folder))))
        none = self._config_file in (None, Path(os.devnull))  # the latter where `submit` has started the server
        file = "~/.config/jobpipe/jobpipe.yaml" if none else self._config_file
        return (
            f"move it, or give {file} on the server's host the line\n"
            f'  jobpipe.server.roots: "{listed}"\n'
            "and restart the server: jobpipe server --stop, then submit again, or jobpipe server"
        )


def _places(pipeline: Pipeline) -> Iterator[tuple[str, Path, bool]]:
    """Yield key and path of what is looked at, and whether Python imports from there."""
    spec, folder = pipeline.spec, pipeline.folder
    yield "", folder, True
    for each in spec.libraries:
        yield "pipeline.libraries", folder / each.glob.include.split("*")[0], True
    if spec.storage is not None:
        for path in _local(absolute(spec.storage, folder)):
            yield "pipeline.storage", path, False
    for job in pipeline.jobs.values():
        if job.spec.application is not None:
            program = folder / job.spec.application
            yield f"jobs.{job.name}.application", program, False
            yield f"jobs.{job.name}.application", program.parent, True


def _way(path: Path) -> Iterator[Path]:
    """Yield the folder of each link on the way to a path, without links, as it is reached; last where the path is.

    What is not there is no link.

    Raises:
        OSError: a part of the way cannot be looked at, or there are more than 40 links.
    """
    at, left, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    while left:
        name = left.pop()
        if name == "..":
            at = at.parent
            continue
        try:
            target = Path(os.readlink(at / name))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):  # the first: it is no link
                raise
            at = at / name
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        yield at
        if target.is_absolute():
            at = Path("/")
        left.extend(reversed(target.parts[target.is_absolute() :]))
    yield at


def _local(place: str) -> tuple[Path, ...]:
    """Return the folders of this host that a storage may be: as written, and with %2e and the like decoded."""
    if _FILE.match(place):
        place = "/" + _FILE.sub("", place, count=1)
    elif _URI.match(place):
        return ()
    return tuple({Path(place), Path(unquote(place))})
