"""Which files are trusted: those that only this user and root can change.

What a configuration or an access list says decides whom a process trusts and which code it imports, and a folder that
others may write to can be exchanged as a whole. The rule is the same for all of them, see :func:`why_distrusted`.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

ROOT = 0
USER_REMEDY = "add the user to /etc/passwd (in an image: RUN useradd ...), or give it a name with libnss_wrapper"
NULL = os.makedev(1, 3)  # /dev/null, whose owner has no number in a namespace of users


@dataclass(frozen=True)
class UntrustedFolder:
    """A folder that others could have changed.

    Attributes:
        why: a phrase, as :func:`why_distrusted` returns it.
        remedy: what to do about it.
    """

    path: Path
    why: str
    remedy: str


def why_distrusted(
    found: os.stat_result, *, any_owner: bool = False, owners: Collection[int] = (), has_modules: bool = False
) -> str | None:
    """Return why others could have changed a file or folder, as a phrase; None if only its user and root can.

    - The owner must be this process's user, or root.
    - Others must not be able to write, except to a folder with the sticky bit, as /tmp: there they cannot rename or
      remove what is ours.
    - A group may write if root owns the file, who chose that group, or if the group is root's, or the private group of
      the owner or this user: of the user's name and with no other member, as many systems give each user (umask 002).
      For a user without a name, as in a container, it is the process's group, if nothing else is known of that one.
    - A device of root's, and /dev/null, keeps nothing that is written to it: the latter is an empty configuration.

    Args:
        any_owner: the file was named on purpose, so its owner is trusted.
        owners: the numbers of users who are trusted besides root and this process's user.
        has_modules: Python imports from the folder, so others must not add files to it either, sticky bit or not.
    """
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISCHR(found.st_mode) and (found.st_uid == ROOT or found.st_rdev == NULL):
        return None
    if not any_owner and found.st_uid not in (ROOT, os.geteuid(), *owners):
        return f"it belongs to another user, {user_name(found.st_uid)}"
    sticky = stat.S_ISDIR(found.st_mode) and mode & stat.S_ISVTX and not has_modules
    if mode & stat.S_IWOTH and not sticky:
        return f"everyone may write to it (mode {mode:04o})"
    if mode & stat.S_IWGRP and found.st_uid != ROOT and not _is_private(found.st_gid, found.st_uid):
        return f"the group {_group(found.st_gid)} may write to it (mode {mode:04o})"
    return None


def _remedy(path: Path, found: os.stat_result, *, any_owner: bool = False, owners: Collection[int] = ()) -> str:
    """Return what to do about a file, folder or link that is distrusted."""
    user = user_name(os.geteuid())
    trusted = "root" if os.geteuid() == ROOT else f"{user} and root"
    place = shlex.quote(str(path))
    if stat.S_ISLNK(found.st_mode):
        return f"only {trusted} may be able to change it: `chown -h {user} {place}`, or use another"
    if found.st_mode & stat.S_ISVTX and stat.S_ISDIR(found.st_mode):  # as /tmp, which must stay as it is
        return f"use a folder that only {trusted} can change"
    if any_owner or found.st_uid in (ROOT, os.geteuid(), *owners):
        return f"take that right away: `chmod go-w {place}`, or use another"
    return f"only {trusted} may be able to change it: `chown {user} {place} && chmod go-w {place}`, or use another"


def read_own_file(path: Path, most: int, *, any_owner: bool = False) -> tuple[bytes, str | None]:
    """Return at most ``most`` bytes of a file, or what is wrong with its owner or mode, with a remedy.

    Both are of the open file, so it cannot be exchanged between the check and the reading.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        why = why_distrusted(found, any_owner=any_owner)
        if why is None and not any_owner and (link := path.lstat()).st_uid not in (ROOT, os.geteuid()):
            found, why = link, f"the link belongs to another user, {user_name(link.st_uid)}"
        return (file.read(most), None) if why is None else (b"", f"{why}; {_remedy(path, found, any_owner=any_owner)}")


def folder_problem(path: Path) -> str | None:
    """Return what is wrong with a folder that is to hold our files, with a remedy; None if it is sound, or not there.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    why = why_distrusted(found)
    return None if why is None else f"{path}: {why}; {_remedy(path, found)}"


def distrusted_level(
    path: Path, top: Path, *, any_owner: bool = False, owners: Collection[int] = (), has_modules: bool = False
) -> UntrustedFolder | None:
    """Return the first folder, from ``top`` down to ``path``, that others could have changed; None if none is.

    Levels that are not there are left out, and so are those of a file system that is mounted read-only, such as a
    ConfigMap in a container.

    Args:
        path: without links; ``top`` or below it.
        any_owner: the folders were named on purpose, so their owners are trusted.
        owners: the numbers of users who are trusted besides root and this process's user.
        has_modules: Python imports from ``path``.

    Raises:
        OSError: a level cannot be looked at, which may pass.
    """
    levels = [each for each in reversed(path.parents) if each.is_relative_to(top)]
    for level in (*levels, path):
        try:
            found, mounted = level.stat(), os.statvfs(level)
        except (FileNotFoundError, NotADirectoryError):
            return None
        imported = has_modules and level == path
        why = why_distrusted(found, any_owner=any_owner, owners=owners, has_modules=imported)
        if why is not None and not mounted.f_flag & os.ST_RDONLY:
            remedy = _remedy(level, found, any_owner=any_owner, owners=owners)
            return UntrustedFolder(level, why, f"{remedy}, or mount it read-only")
    return None


def _is_private(group: int, owner: int) -> bool:
    return group == ROOT or any(_is_private_of(user, group) for user in {owner, os.geteuid()})


def _is_private_of(number: int, group: int) -> bool:
    try:
        user = pwd.getpwuid(number)
    except KeyError:
        return number == os.geteuid() and group == os.getegid() and _is_unknown(group)
    try:
        found = grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _is_unknown(group: int) -> bool:
    """Whether a group has no name, and no user's entry names it."""
    try:
        grp.getgrgid(group)
    except KeyError:
        return all(each.pw_gid != group for each in pwd.getpwall())
    return False


def user_name(number: int) -> str:
    """Return a user's name, or the number as text if there is none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def why_nameless() -> str | None:
    """Return why Spark's JVM, which wants the user's name, does not start; None if this process's user has one."""
    user = os.getuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        return f"user {user} has no name in the passwd database, and Spark's JVM does not start without one"
    return None
