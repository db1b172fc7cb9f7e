"""Errors of the server that sends its log, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
from jobpipe.cdc.mariadb.mysql_state import LogState
from jobpipe.errors import DataLoss, LinkBroken

CANNOT_SEND = 1236  # the log, for a reason that its text says
_OTHER_READER = "same server"  # "A slave with the same server_uuid/server_id as this slave has connected"


@contextmanager
def translated(options: MysqlOptions, state: LogState) -> Iterator[None]:
    """Make the block raise our errors where the server cannot send its log; others of the driver go on."""
    import pymysql

    try:
        yield
    except pymysql.MySQLError as error:
        if not error.args or error.args[0] != CANNOT_SEND:
            raise
        said = " ".join(str(error.args[-1]).split())
        if _OTHER_READER in said:
            raise LinkBroken(
                f"capture {options.name!r}: the server has ended the stream, as another replica has the number "
                f"{options.replica_id}: {said}. If this capture runs once, give it another one: server-id",
                server_id=options.replica_id,
            ) from None
        at = state.at.position
        raise DataLoss(
            f"capture {options.name!r}: the server cannot send its log from {at} ({state.at.gtids.text or 'no GTID'}) "
            f"on: {said}. What follows is lost to this capture. To read all tables again, start the capture under "
            "another name",
            reason="stream",
            position=str(at),
        ) from None
