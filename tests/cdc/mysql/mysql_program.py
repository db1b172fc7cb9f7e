"""A capture to be killed: ``mysql_program.py ORDER``, JSON with options and settings; says when it streams."""

import json
import sys

from jobpipe.cdc.mariadb.mysql_capture import MysqlCapture
from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
from jobpipe.config import load
from jobpipe.config.types.secrets import Secret
from tests.cdc.capturing import routes


def main() -> None:
    order = json.loads(sys.argv[1])
    given = order["options"]
    options = MysqlOptions(
        **{**given, "tables": tuple(given["tables"]), "route": routes(given["route"])},
        password=Secret("env:CDC_MYSQL_PASSWORD"),
    )
    with MysqlCapture(options, load(overrides=order["settings"], environ={})) as capture:
        capture.run(lambda: print("streams", flush=True))


if __name__ == "__main__":
    main()
