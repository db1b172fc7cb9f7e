"""S9: configuration, access list and folders that others could have changed are refused, with the reason and remedy."""

from __future__ import annotations

import grp
import json
import logging
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobpipe.cli.doctor.host_checks import spool as spool_finding
from jobpipe.config import Config, load, resolve
from jobpipe.config.reading import config_loader, file_permissions
from jobpipe.errors import ConfigError, SpoolError
from jobpipe.net.servers.access_list import read_access
from jobpipe.store.spool.host_folder import HostFolder, announced
from jobpipe.store.spool.spool_files import prepare_topic

TEXT = json.dumps({"jobpipe.retention.time": "7s"})
STRANGER = 54321


@pytest.fixture
def of_another_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Give a file to another user; without root's right to that, be another user instead."""

    def give(path: Path) -> Path:
        if os.geteuid() == 0:
            os.chown(path, STRANGER, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(file_permissions.os, "geteuid", lambda: STRANGER)
        return path

    return give


def write(path: Path, text: str = TEXT, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def refused(path: Path | None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environ=environ)
    return caught.value.message


def test_a_strangers_file_in_the_working_folder(lonely: Path, of_another_user: Callable[[Path], Path]) -> None:
    """S9: registry, TLS and the handler's module would be his."""
    file = of_another_user(write(lonely / "conf" / "jobpipe.yaml"))
    message = refused(None)
    assert str(file) in message
    assert "belongs to another user" in message
    assert "chown" in message


def test_a_file_that_a_strangers_link_leads_to(lonely: Path, of_another_user: Callable[[Path], Path]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives links away")
    link = lonely / "conf" / "jobpipe.yaml"
    link.parent.mkdir()
    link.symlink_to(write(lonely / "mine.yaml"))
    assert load(None, environ={}).retention_time == 7.0
    of_another_user(link)
    assert "the link belongs to another user" in refused(None)


@pytest.mark.parametrize("named_by", ["search", "option", "environment"])
def test_a_file_that_everybody_may_write(lonely: Path, named_by: str) -> None:
    file = write(lonely / "conf" / "jobpipe.yaml", mode=0o666)
    environ = {config_loader.ENVIRONMENT_FILE: str(file)} if named_by == "environment" else {}
    message = refused(file if named_by == "option" else None, **environ)
    assert "everyone may write to it (mode 0666)" in message
    file.chmod(0o644)
    assert load(file if named_by == "option" else None, environ=environ).retention_time == 7.0


def test_groups(lonely: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private group, root's group, and a group that root chose may write; any other may not."""
    monkeypatch.setattr(file_permissions.os, "geteuid", lambda: 1000)
    users = SimpleNamespace(getpwuid=lambda _: SimpleNamespace(pw_name="ann", pw_gid=1000))
    monkeypatch.setattr(file_permissions, "pwd", users)
    members = {1000: ("ann", []), 1001: ("ann", []), 100: ("users", ["ann", "bob"]), 0: ("root", ["eve"])}

    def group(number: int) -> SimpleNamespace:
        name, others = members[number]
        return SimpleNamespace(gr_name=name, gr_mem=others)

    monkeypatch.setattr(file_permissions, "grp", SimpleNamespace(getgrgid=group))

    def found(uid: int, gid: int, mode: int) -> os.stat_result:
        return os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))

    file, folder = stat.S_IFREG | 0o664, stat.S_IFDIR | 0o1777
    null = SimpleNamespace(
        st_mode=stat.S_IFCHR | 0o666, st_uid=65534, st_gid=65534, st_rdev=os.stat(os.devnull).st_rdev
    )
    assert file_permissions.why_distrusted(null) is None  # in a namespace where root's files are nobody's
    assert file_permissions.why_distrusted(found(1000, 1000, file)) is None
    assert file_permissions.why_distrusted(found(1000, 0, file)) is None
    assert file_permissions.why_distrusted(found(0, 100, file)) is None
    assert file_permissions.why_distrusted(found(0, 0, folder)) is None
    assert "group users" in (file_permissions.why_distrusted(found(1000, 100, file)) or "")
    assert (
        file_permissions.why_distrusted(found(1000, 1001, file)) is not None
    )  # of the user's name, but not the user's own
    members[1000] = ("ann", ["bob"])
    assert file_permissions.why_distrusted(found(1000, 1000, file)) is not None
    assert "another user" in (file_permissions.why_distrusted(found(1001, 1000, stat.S_IFREG | 0o600)) or "")
    assert "everyone" in (file_permissions.why_distrusted(found(0, 0, stat.S_IFDIR | 0o777)) or "")
    assert load("/dev/null", environ={}) == load(None, environ={})


class Accounts:
    """The databases of users and groups: what is given, and nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, users: dict[int, tuple[str, int]], process: int) -> None:
        self.users = users
        self.groups: dict[int, tuple[str, list[str]]] = {}
        monkeypatch.setattr(file_permissions, "pwd", SimpleNamespace(getpwuid=self.user, getpwall=self.all))
        monkeypatch.setattr(file_permissions, "grp", SimpleNamespace(getgrgid=self.group))
        monkeypatch.setattr(file_permissions.os, "geteuid", lambda: process)
        monkeypatch.setattr(file_permissions.os, "getegid", lambda: process)

    def user(self, number: int) -> SimpleNamespace:
        name, group = self.users[number]
        return SimpleNamespace(pw_name=name, pw_gid=group)

    def all(self) -> list[SimpleNamespace]:
        return [self.user(number) for number in self.users]

    def group(self, number: int) -> SimpleNamespace:
        name, members = self.groups[number]
        return SimpleNamespace(gr_name=name, gr_mem=members)


def folder_of(user: int, group: int) -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | 0o775, 0, 0, 1, user, group, 0, 0, 0, 0))


def test_the_group_of_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with -u 12345:12345."""
    accounts = Accounts(monkeypatch, {0: ("root", 0)}, process=12345)
    assert file_permissions.why_distrusted(folder_of(12345, 12345)) is None
    assert "group 54321 may write" in (file_permissions.why_distrusted(folder_of(12345, 54321)) or "")
    accounts.groups[12345] = ("staff", [])
    assert "group staff may write" in (file_permissions.why_distrusted(folder_of(12345, 12345)) or "")
    accounts.groups.clear()
    accounts.users[1000] = ("ann", 12345)  # her main group
    assert "group 12345 may write" in (file_permissions.why_distrusted(folder_of(12345, 12345)) or "")


def test_the_private_group_of_an_owner_who_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root runs the pipeline of a user with umask 002."""
    accounts = Accounts(monkeypatch, {0: ("root", 0), 1000: ("ann", 1000)}, process=0)
    accounts.groups[1000] = ("ann", [])
    assert file_permissions.why_distrusted(folder_of(1000, 1000), any_owner=True) is None
    assert "another user" in (file_permissions.why_distrusted(folder_of(1000, 1000)) or "")
    accounts.groups[1000] = ("ann", ["bob"])
    assert "group ann may write" in (file_permissions.why_distrusted(folder_of(1000, 1000), any_owner=True) or "")


def test_an_access_list_of_somebody_else(tmp_path: Path, of_another_user: Callable[[Path], Path]) -> None:
    """S9: who may write it decides who reads and publishes."""
    path = write(tmp_path / "access.yaml", "orders: {read: [a.jobpipe]}\n", 0o646)
    with pytest.raises(ConfigError, match="everyone may write"):
        read_access(path)
    path.chmod(0o644)
    assert read_access(path).entries
    of_another_user(path)
    with pytest.raises(ConfigError, match=r"access.yaml: .*another user"):
        read_access(path)


def test_a_spool_that_others_may_write(tmp_path: Path, of_another_user: Callable[[Path], Path]) -> None:
    """S9: a whole topic's folder could be exchanged; `jobpipe doctor` says so, too."""
    spool = tmp_path / "spool"
    prepare_topic(spool / "orders", "orders")
    spool.chmod(0o777)
    with pytest.raises(SpoolError, match="everyone may write"):
        prepare_topic(spool / "orders", "orders")
    finding = spool_finding(Config(spool_dir=spool))
    assert (finding.status, "everyone may write" in finding.detail) == ("fail", True)
    assert "chmod" in finding.remedy
    spool.chmod(0o1777)
    prepare_topic(spool / "orders", "orders")
    spool.chmod(0o755)
    of_another_user(spool)
    with pytest.raises(SpoolError, match="another user"):
        prepare_topic(spool / "orders", "orders")


def test_a_host_servers_folder_that_others_may_write(tmp_path: Path, of_another_user: Callable[[Path], Path]) -> None:
    """S9: neither the server nor a task believes it."""
    path = tmp_path / "hosts"
    folder = HostFolder(path)
    folder.announce("127.0.0.1:20000")
    folder.close()
    folder = HostFolder(path)
    folder.announce("127.0.0.1:20000")
    assert announced(path) is not None
    path.chmod(0o777)
    assert announced(path) is None
    path.chmod(0o755)
    (path / "server.json").chmod(0o666)
    assert announced(path) is None
    folder.close()
    path.chmod(0o777)
    with pytest.raises(SpoolError, match="everyone may write"):
        HostFolder(path)
    path.chmod(0o755)
    of_another_user(path)
    with pytest.raises(SpoolError, match="another user"):
        HostFolder(path)


def test_the_working_folders_file_is_named_once(lonely: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S9: it is in force without having been asked for."""
    caplog.set_level(logging.INFO, "jobpipe.config")
    file = write(lonely / "conf" / "jobpipe.yaml")
    for _ in range(3):
        assert resolve(environ={}).in_working_folder
    assert caplog.text.count(f"{file} of the working folder is in use") == 1
    assert not resolve(file, environ={}).in_working_folder


def test_this_machines_names() -> None:
    """The lookups work with what this system has."""
    found = Path(__file__).stat()
    file_permissions.why_distrusted(found)
    assert pwd.getpwuid(os.geteuid()).pw_name == file_permissions.user_name(os.geteuid())
    assert grp.getgrgid(os.getegid()).gr_name == file_permissions._group(os.getegid())
    assert config_loader.SYSTEM_FILE.is_absolute()
