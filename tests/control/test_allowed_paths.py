"""What others could change of a submitted pipeline is refused: at submit, and before each attempt."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.config.reading import file_permissions
from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.job_states import JobState
from tests.control.world import World, job_of, status, wait


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A root with a pipeline's folder, that has modules, a program, and a checkpoint."""
    for folder in ("orders/lib/deep", "state/orders"):
        (tmp_path / "shop" / folder).mkdir(parents=True)
    (tmp_path / "shop" / "orders" / "own.py").write_text("")
    (tmp_path / "shop" / "orders" / "lib" / "programs").mkdir()
    (tmp_path / "shop" / "orders" / "lib" / "programs" / "own.py").write_text("")
    return tmp_path / "shop"


def problems_of(root: Path, *, roots: Sequence[Path] = (), **section: Any) -> list[Problem]:
    given = {
        "libraries": [{"glob": {"include": "lib/deep/**"}}, {"glob": {"include": "own.py"}}],
        "storage": f"file:{root}/state/orders",
        **section,
    }
    tree = {
        "pipeline": {"name": "orders", **given},
        "jobs": {"copy": job_of(), "own": {"application": "lib/programs/own.py"}},
    }
    folder = root / "orders"
    return list(AllowedPaths(roots or [root]).problems(load_tree(tree, file=folder / "pipeline.yaml", folder=folder)))


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (".", ""),
        ("orders", ""),
        ("orders/lib", "pipeline.libraries"),
        ("orders/lib/deep", "pipeline.libraries"),
        ("orders/own.py", "pipeline.libraries"),
        ("state", "pipeline.storage"),
        ("state/orders", "pipeline.storage"),
        ("orders/lib/programs", "jobs.own.application"),
        ("orders/lib/programs/own.py", "jobs.own.application"),
    ],
)
def test_every_level_up_to_the_root_is_looked_at(shop: Path, path: str, key: str) -> None:
    assert problems_of(shop) == []
    (shop / path).chmod(0o777)
    (found,) = problems_of(shop)
    assert (found.file, found.key) == (str(shop / "orders" / "pipeline.yaml"), key)
    assert found.what == f"others could have changed {shop / path}: everyone may write to it (mode 0777)"
    assert f"chmod go-w {shop / path}`" in found.remedy
    (shop / path).chmod(0o755)
    assert problems_of(shop) == []


def test_a_folder_of_another_user(shop: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    assert problems_of(shop) == []
    os.chown(shop / "state", 4711, 4711)
    (found,) = problems_of(shop)
    assert found.what.endswith("it belongs to another user, 4711")
    assert found.remedy == (
        f"only root may be able to change it: `chown root {shop / 'state'} && chmod go-w {shop / 'state'}`, "
        "or use another, or mount it read-only"
    )


def test_the_owner_of_a_root_is_trusted_in_it(shop: Path) -> None:
    """A user who deploys, of git-sync, or of the host: to name the folder is to trust its owner."""
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    everything = (shop, *shop.rglob("*"))
    for each in everything:
        os.chown(each, 4711, 4711)
    assert problems_of(shop) == []
    (shop / "state").chmod(0o777)
    (found,) = problems_of(shop)
    assert found.what.endswith("everyone may write to it (mode 0777)")
    assert found.remedy.startswith(f"take that right away: `chmod go-w {shop / 'state'}`")
    (shop / "state").chmod(0o755)
    os.chown(shop / "state", 4712, 4712)
    (found,) = problems_of(shop)
    assert found.what.endswith("it belongs to another user, 4712")


def test_the_owner_of_a_root_in_another_one(shop: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    for each in (shop, *shop.rglob("*")):
        os.chown(each, 4711, 4711)
    roots = [shop.parent, shop]
    assert problems_of(shop, roots=roots) == []
    assert problems_of(shop, roots=roots[:1]) != []
    shop.parent.chmod(0o777)
    assert f"changed {shop.parent}: " in problems_of(shop, roots=roots)[0].what


def test_a_remedy_can_be_pasted(shop: Path) -> None:
    folder = shop / "the state"
    folder.mkdir()
    assert problems_of(shop, storage=f"file:{folder}") == []
    folder.chmod(0o777)
    (found,) = problems_of(shop, storage=f"file:{folder}")
    assert f"`chmod go-w '{folder}'`" in found.remedy


def test_what_is_not_there_yet_is_judged_by_what_is(shop: Path) -> None:
    storage = f"file:{shop}/state/later/orders"
    assert problems_of(shop, storage=storage) == []
    (shop / "state").chmod(0o777)
    assert [each.key for each in problems_of(shop, storage=storage)] == ["pipeline.storage"]


def test_where_a_link_lies_counts_too(shop: Path) -> None:
    """A user who may exchange the link chooses the folder."""
    (shop / "open").mkdir()
    (shop / "open" / "link").symlink_to(shop / "state")
    storage = f"file:{shop}/open/link/orders"
    assert problems_of(shop, storage=storage) == []
    (shop / "open").chmod(0o777)
    (found,) = problems_of(shop, storage=storage)
    assert f"changed {shop}/open: " in found.what


@pytest.mark.parametrize("relative", [False, True])
def test_each_link_of_a_chain_is_looked_at(shop: Path, relative: bool) -> None:
    (shop / "open").mkdir()
    (shop / "open" / "link").symlink_to("../state" if relative else shop / "state")
    (shop / "first").symlink_to("orders/../open/link" if relative else shop / "open" / "link")
    storage = f"file:{shop}/first/orders"
    assert problems_of(shop, storage=storage) == []
    (shop / "open").chmod(0o777)
    (found,) = problems_of(shop, storage=storage)
    assert f"changed {shop}/open: " in found.what


def test_links_that_lead_out_or_to_themselves(shop: Path) -> None:
    (shop / "in").symlink_to(shop / "state")
    assert problems_of(shop, storage=f"file:{shop}/in/orders") == []
    (shop / "out").symlink_to("in/../..")
    (found,) = problems_of(shop, storage=f"file:{shop}/out/orders")
    assert f"{shop}/out/orders lies outside {shop}" in found.what
    (shop / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        problems_of(shop, storage=f"file:{shop}/loop/orders")


def test_what_need_not_be_looked_at(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system, a parent with the sticky bit as /tmp, and what is mounted read-only."""
    (shop / "state").chmod(0o1777)
    assert problems_of(shop) == []
    (shop / "state").chmod(0o777)
    assert problems_of(shop)
    assert problems_of(shop, storage="s3a://bucket/state") == []
    monkeypatch.setattr(file_permissions.os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert problems_of(shop) == []


def test_modules_are_not_taken_from_a_sticky_folder(shop: Path) -> None:
    """Others cannot change what is there, but add a module."""
    assert problems_of(shop) == []
    (shop / "orders").chmod(0o1777)
    (found,) = problems_of(shop)
    assert found.what.endswith("everyone may write to it (mode 1777)")
    assert "chmod" not in found.remedy  # of /tmp, say


def test_an_attempt_is_refused_for_good(world: World, tmp_path: Path) -> None:
    """Modes may change between submit and an attempt; a restart looks again."""
    server = world.server()
    (tmp_path / "state").mkdir()
    server.submit(world.submission(storage=f"file:{tmp_path}/state"))
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    (tmp_path / "state").chmod(0o777)
    worker.end("FAILED", 1)
    failed = wait(server, JobState.FAILED)
    assert f"others could have changed {tmp_path}/state" in failed.detail
    assert f"chmod go-w {tmp_path}/state" in failed.detail
    assert len(world.cluster.submitted) == 1
    (tmp_path / "state").chmod(0o755)
    server.restart("flights")
    world.work(2)
    wait(server, JobState.RUNNING)
    assert status(server).attempt == 1


def test_an_attempt_waits_for_a_file_system_that_does_not_answer(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale handle, an expired ticket: no reason to end a streaming job for good."""
    server = world.server()
    (tmp_path / "state").mkdir()
    server.submit(world.submission(storage=f"file:{tmp_path}/state"))
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    with monkeypatch.context() as away:
        does_not_answer(tmp_path / "state", away)
        worker.end("FAILED", 1)
        waiting = wait(server, JobState.RESTARTING, detail="waiting until")
        assert waiting.detail == f"waiting until {tmp_path}/state can be looked at ({os.strerror(errno.ESTALE)})"
        assert len(world.cluster.submitted) == 1
    world.work(2)
    wait(server, JobState.RUNNING)


def does_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def stale(path: Path) -> os.statvfs_result:
        if path == folder:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path)

    monkeypatch.setattr(file_permissions.os, "statvfs", stale)
