"""What a database must be set to before a capture begins: one error names all that is missing, with its remedy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from jobpipe.cdc.capture_options import CaptureOptions
from jobpipe.cdc.changes import Table
from jobpipe.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """What is missing, and the command that mends it."""

    what: str
    remedy: str


def require_none(problems: Sequence[Problem], product: str, place: str) -> None:
    """Check that nothing is missing.

    Raises:
        ConfigError: names all that is, each with the statement that mends it.
    """
    if not problems:
        return
    lines = "".join(f"\n  {problem.what}: {problem.remedy}" for problem in problems)
    count = f"{len(problems)} thing{'s' if len(problems) > 1 else ''}"
    raise ConfigError(
        f"{product} at {place} is not ready for a capture: {count} to mend{lines}",
        database=place,
        problems=[problem.what for problem in problems],
    )


def pattern_problems(patterns: Sequence[str], found: Sequence[str], schema_word: str = "schema") -> list[Problem]:
    """Return which tables are named, and are not there.

    Args:
        patterns: of tables, as the options have them.
        found: the names of those that are there.
    """
    plain = [each for each in patterns if not set("*+?[](){}|\\^$") & set(each)]
    missing = [each for each in plain if each not in found]
    problems = [
        Problem(f"there is no table {each}", f"mend the name: {schema_word}.table, as in the catalog")
        for each in missing
    ]
    if not found and not missing:
        problems.append(Problem(f"no table matches {', '.join(patterns)}", "mend the expressions of tables"))
    return problems


def warned(capture: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return no problems: a capture that has begun is only warned of these."""
    for problem in problems:
        log.warning("capture %s: %s: %s", capture, problem.what, problem.remedy)
    return []


def text_column_problems(options: CaptureOptions, tables: Sequence[Table]) -> list[Problem]:
    """Return which columns are to be published as text, and are not there; of a table that is not there, warn."""
    columns = {str(table): [column.name for column in table.columns] for table in tables}
    problems = []
    for each in options.text_columns:
        schema, name, column = each.split(".", 2)
        table = f"{schema}.{name}"
        if table not in columns:
            log.warning("capture %s: text-columns has %s, and there is no such table yet", options.name, each)
        elif column not in columns[table]:
            remedy = f"mend text-columns; {table} has {', '.join(columns[table])}"
            problems.append(Problem(f"there is no column {each}", remedy))
    return problems
