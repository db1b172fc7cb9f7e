"""Spark's SQL as far as it says of which columns each column is made; parsed by sqlglot, which needs no Spark.

What is not understood gives no columns; see :mod:`jobpipe.control.lineage.column_frames`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from jobpipe.control.lineage.column_frames import UNKNOWN, Frame, FrameColumn, Origin, Origins, Use, used

_DIALECT = "spark"
_MOST_CHARACTERS = 100_000  # of one text
_CLAUSES = frozenset(
    {
        *("with_", "kind", "hint", "distinct", "expressions", "from_", "joins", "where", "group", "having", "qualify"),
        *("windows", "order", "sort", "limit", "offset"),
    }
)
"""The clauses of a SELECT that are understood; one with another clause gives no columns."""
_WINDOW = re.compile(r"\bwindow\s*\(", re.IGNORECASE)
"""Spark's function of windows of time, of which sqlglot takes the name for a clause after GROUP BY."""
_WINDOWS = {"_window": "window", "session_window": "session_window"}  # the columns that they make, without an alias
_OF_ONE_ROW = (exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)
"""Functions over windows whose values are those of one row; sqlglot counts them among the aggregates."""
_Views = Mapping[str, Frame]  # by their names in small letters

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of syntax that it does not know


def columns_of(ddl: str) -> dict[str, str] | None:
    """Return the types of columns, by name, as Spark writes them; None of what is no list of columns.

    >>> columns_of("id BIGINT, tags ARRAY<STRING> NOT NULL")
    {'id': 'bigint', 'tags': 'array<string>'}
    """
    found: dict[str, str] = {}
    try:
        table = _parsed(f"CREATE TABLE t ({ddl}\n)").find(exp.Schema)
    except _NotUnderstoodError:
        return None
    for column in () if table is None else table.expressions:
        kind = column.args.get("kind") if isinstance(column, exp.ColumnDef) else None
        if not isinstance(kind, exp.DataType):
            return None
        found[column.name] = _type(kind)
    return found or None


def query_frame(query: str, views: Mapping[str, Frame]) -> Frame:
    """Return the rows of a SELECT.

    Args:
        views: by the names that it may use; what it reads besides is not known.
    """
    try:
        return _distinct(_frame(_parsed(query), {name.lower(): frame for name, frame in views.items()}))
    except (_NotUnderstoodError, RecursionError):  # a chain of a thousand operators is as deep
        return UNKNOWN


def filtered_frame(condition: str, frame: Frame) -> Frame:
    """Return rows of which those are kept for which a condition is true."""
    try:
        return frame.influenced(_Scope({"": frame}).influences([_parsed(condition, exp.Condition)], Use.FILTER))
    except (_NotUnderstoodError, RecursionError):
        return frame


class _NotUnderstoodError(Exception):
    """No columns are certain."""


def _parsed(text: str, into: type[exp.Expr] | None = None) -> exp.Expr:
    if len(text) > _MOST_CHARACTERS:
        raise _NotUnderstoodError
    text = _WINDOW.sub("_window(", text)
    try:
        found = sqlglot.parse(text, dialect=_DIALECT) if into is None else [sqlglot.parse_one(text, dialect=_DIALECT)]
    except (SqlglotError, RecursionError):
        raise _NotUnderstoodError from None
    if len(found) != 1 or found[0] is None:
        raise _NotUnderstoodError
    if any("_window(" in each.name for each in found[0].find_all(exp.Identifier)):
        raise _NotUnderstoodError  # a name in quotes that was taken for the function
    return found[0]


def _type(kind: exp.Expr) -> str:
    return kind.sql(_DIALECT).lower().replace(", ", ",").replace(": ", ":")


@dataclass
class _Scope:
    """What names mean in one SELECT.

    Attributes:
        frames: what it selects from, by names in small letters.
        shared: names, in small letters, by which these are joined: a column of it is the one of the first frame.
        aliases: of the columns that were selected so far.
        is_selected: whether what follows is about the result, where an alias may come before a column of the rows.
    """

    frames: dict[str, Frame]
    shared: list[str] = field(default_factory=list)
    aliases: dict[str, Origins | None] = field(default_factory=dict)
    is_selected: bool = False

    def influences(self, expressions: Iterable[exp.Expr | None], use: Use) -> Iterator[Origin]:
        """Yield what expressions use, as far as that is certain."""
        for each in expressions:
            origins = None if each is None else self.origins(each)
            yield from (replace(origin, use=use) for origin in origins or () if origin.use.is_direct)

    def column(self, column: exp.Column) -> FrameColumn | None:
        """Return the column that is meant; None if that is not certain. One of a field of it has no type."""
        parts = [part.name for part in column.parts]
        if len(parts) > 1 and parts[0].lower() in self.frames:
            found, fields = self.frames[parts[0].lower()].find(parts[1]), len(parts) > 2
        else:
            found, fields = self._unqualified(parts[0]), len(parts) > 1
        if found is None or not fields:
            return found
        return FrameColumn(parts[-1], None, used(found.origins, Use.TRANSFORMATION))

    def _unqualified(self, name: str) -> FrameColumn | None:
        """Return a column by its name alone: a column of the rows comes before an alias of this SELECT."""
        known = [frame for frame in self.frames.values() if frame.known(name)]
        alias = name.lower() in self.aliases
        if len(known) == 1 or (known and name.lower() in self.shared):
            found = known[0].find(name)
            is_other = alias and found is not None and self.aliases[name.lower()] != found.origins
            return None if self.is_selected and is_other else found
        more = [frame for frame in self.frames.values() if not frame.is_complete]
        if known or (more and alias):
            return None
        if alias:
            return FrameColumn(name, None, self.aliases[name.lower()])
        return more[0].find(name) if len(more) == 1 else None

    def origins(self, node: exp.Expr) -> Origins | None:
        """Return what an expression is made of; None if that is not certain."""
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            return frozenset()
        if isinstance(node, exp.Star) or isinstance(node.this, exp.Star):
            return None  # all columns, as an argument
        if isinstance(node, exp.Column):
            found = self.column(node)
            return None if found is None else found.origins
        if isinstance(node, (exp.Query, exp.Exists)) or node.args.get("query") is not None:
            return None
        if isinstance(node, exp.Anonymous) and node.name.lower() == "identifier":
            return None  # a column whose name is a value
        if isinstance(node, (exp.Alias, exp.Paren)):
            return self.origins(node.this)
        if isinstance(node, exp.Lambda):
            return self._of_lambda(node)
        parts: list[tuple[Use, Iterable[exp.Expr | None]]] = [(Use.TRANSFORMATION, node.iter_expressions())]
        if isinstance(node, exp.Case):
            branches = [*(each.args.get("true") for each in node.args["ifs"]), node.args.get("default")]
            conditions = [node.args.get("this"), *(each.this for each in node.args["ifs"])]
            parts = [(Use.TRANSFORMATION, branches), (Use.CONDITIONAL, conditions)]
        elif isinstance(node, exp.If):
            branches = [node.args.get("true"), node.args.get("false")]
            parts = [(Use.TRANSFORMATION, branches), (Use.CONDITIONAL, [node.this])]
        elif isinstance(node, exp.Window):
            if isinstance(node.args.get("alias"), exp.Expr):
                return None  # a named window, which another clause defines
            over = [*node.args.get("partition_by", ()), node.args.get("order")]
            parts = [(Use.IDENTITY, [node.this]), (Use.WINDOW, over)]
        elif isinstance(node, exp.Filter):
            parts = [(Use.IDENTITY, [node.this]), (Use.CONDITIONAL, [node.expression])]
        elif isinstance(node, exp.AggFunc) and not isinstance(node, _OF_ONE_ROW):
            parts = [(Use.AGGREGATION, node.iter_expressions())]
        elif isinstance(node, exp.Anonymous) and node.name.lower() not in _WINDOWS:
            parts = [(Use.FUNCTION, node.iter_expressions())]
        return self._joined(parts)

    def _joined(self, parts: Iterable[tuple[Use, Iterable[exp.Expr | None]]]) -> Origins | None:
        found: set[Origin] = set()
        for use, nodes in parts:
            for node in nodes:
                origins = frozenset() if node is None else self.origins(node)
                if origins is None:
                    return None
                if use.is_direct:
                    found |= used(origins, use) or frozenset()
                else:
                    found |= {replace(each, use=use) if each.use.is_direct else each for each in origins}
        return frozenset(found)

    def _of_lambda(self, node: exp.Lambda) -> Origins | None:
        """Return what the body is made of besides the arguments, which are no columns."""
        names = {each.name.lower() for each in node.expressions}
        if any(column.parts[0].name.lower() in names for column in node.find_all(exp.Column)):
            return None
        return self.origins(node.this)


def _frame(node: exp.Expr, views: _Views) -> Frame:
    """Return the rows of a query."""
    if isinstance(node, exp.Subquery):
        if set(_given(node)) - {"this", "alias", "with_"}:
            raise _NotUnderstoodError
        return _frame(node.this, _with_ctes(node, views))
    if isinstance(node, exp.Union):
        return _union(node, _with_ctes(node, views))
    if isinstance(node, exp.Select):
        return _selected(node, _with_ctes(node, views))
    raise _NotUnderstoodError


def _given(node: exp.Expr) -> list[str]:
    return [name for name, value in node.args.items() if value]


def _with_ctes(node: exp.Expr, views: _Views) -> _Views:
    given = node.args.get("with_")
    if given is None:
        return views
    if given.args.get("recursive"):
        raise _NotUnderstoodError
    found = dict(views)
    for each in given.expressions:
        try:
            frame = _frame(each.this, found)
        except _NotUnderstoodError:
            frame = UNKNOWN
        found[each.alias.lower()] = UNKNOWN if each.args["alias"].args.get("columns") else frame
    return found


def _union(node: exp.Union, views: _Views) -> Frame:
    first, second = _frame(node.this, views), _frame(node.expression, views)
    if node.args.get("by_name") or not (first.is_complete and second.is_complete):
        raise _NotUnderstoodError
    if len(first.columns) != len(second.columns):
        raise _NotUnderstoodError
    columns = []
    for one, other in zip(first.columns, second.columns, strict=True):
        both = None if one.origins is None or other.origins is None else one.origins | other.origins
        columns.append(FrameColumn(one.name, one.type if one.type == other.type else None, both))
    return Frame(tuple(columns), is_complete=True).influenced(first.influences | second.influences)


def _selected(select: exp.Select, views: _Views) -> Frame:
    if set(_given(select)) - _CLAUSES or select.args.get("from_") is None or select.args.get("kind"):
        raise _NotUnderstoodError
    scope, influences = _scope(select, views)
    for each in getattr(select.args.get("group"), "expressions", ()):
        if isinstance(each, exp.Anonymous) and (name := _WINDOWS.get(each.name.lower())) is not None:
            scope.aliases[name] = scope.origins(each)
    made = Frame(is_complete=True)
    for each in select.expressions:
        star = each if isinstance(each, exp.Star) else each.this if isinstance(each, exp.Column) else None
        if isinstance(star, exp.Star):
            table = each.args.get("table") if isinstance(each, exp.Column) else None
            made = _with_star(made, star, scope, None if table is None else table.name.lower())
        else:
            made = _with_column(made, each, scope)
    influences |= set(scope.influences(_conditions(select, "where"), Use.FILTER))
    influences |= set(_grouping(select, scope))
    scope.is_selected = True
    influences |= set(scope.influences(_conditions(select, "qualify", "having"), Use.FILTER))
    order = [each.this for name in ("order", "sort") for each in getattr(select.args.get(name), "expressions", ())]
    influences |= set(scope.influences(order, Use.SORT))
    return made.influenced(influences)


def _conditions(select: exp.Select, *clauses: str) -> Iterator[exp.Expr]:
    yield from (select.args[name].this for name in clauses if select.args.get(name) is not None)


def _grouping(select: exp.Select, scope: _Scope) -> Iterator[Origin]:
    group = select.args.get("group")
    if group is None or group.args.get("all"):
        return
    for each in group.iter_expressions():
        place = int(each.name) if isinstance(each, exp.Literal) and each.is_int else None
        if place is not None:
            if any(one.is_star for one in select.expressions[:place]):
                continue  # which column that is, is not certain
            each = select.expressions[place - 1] if 0 < place <= len(select.expressions) else None
        yield from scope.influences([each], Use.GROUP_BY)


def _scope(select: exp.Select, views: _Views) -> tuple[_Scope, set[Origin]]:
    """Return what names mean in a SELECT, and what its joins use."""
    scope = _Scope({})
    influences: set[Origin] = set()
    _add(scope, influences, select.args["from_"].this, views)
    for join in select.args.get("joins") or ():
        if join.args.get("method") or set(_given(join)) - {"this", "on", "using", "side", "kind"}:
            raise _NotUnderstoodError
        name = _add(scope, influences, join.this, views)
        using = [each.name.lower() for each in join.args.get("using") or ()]
        if using and join.side in ("RIGHT", "FULL"):
            raise _NotUnderstoodError
        scope.shared.extend(using)
        for frame in scope.frames.values():
            for each in using:
                found = frame.find(each)
                origins = (found.origins if found is not None else None) or ()
                influences |= {replace(origin, use=Use.JOIN) for origin in origins if origin.use.is_direct}
        influences |= set(scope.influences([join.args.get("on")], Use.JOIN))
        if join.kind in ("SEMI", "ANTI"):
            del scope.frames[name]
    return scope, influences


def _add(scope: _Scope, influences: set[Origin], source: exp.Expr, views: _Views) -> str:
    """Add what a SELECT reads to the scope; return its name there."""
    frame, name = UNKNOWN, source.alias_or_name.lower()
    if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
        if set(_given(source)) <= {"this", "alias", "sample"} and not _column_names(source):
            frame = views.get(source.name.lower(), UNKNOWN)
    elif isinstance(source, exp.Subquery) and not _column_names(source):
        frame = _frame(source, views)
    if name in scope.frames:
        raise _NotUnderstoodError
    influences |= frame.influences
    scope.frames[name] = frame
    return name


def _column_names(source: exp.Expr) -> bool:
    alias = source.args.get("alias")
    return isinstance(alias, exp.TableAlias) and bool(alias.args.get("columns"))


def _with_star(made: Frame, star: exp.Star, scope: _Scope, table: str | None) -> Frame:
    if table is not None and table not in scope.frames:
        raise _NotUnderstoodError  # the fields of a struct
    if star.args.get("replace") or star.args.get("rename"):
        raise _NotUnderstoodError
    without = star.args.get("except_") or ()
    if any(isinstance(each, exp.Dot) or (isinstance(each, exp.Column) and each.table) for each in without):
        raise _NotUnderstoodError  # a field of a struct
    gone = {each.name.lower() for each in without}
    frames = [scope.frames[table]] if table is not None else list(scope.frames.values())
    if table is None and scope.shared and (len(frames) > 2 or made.columns):
        raise _NotUnderstoodError  # the order of the columns is not certain
    seen: set[str] = set()
    for frame in frames:
        kept = frame.without(gone | seen.intersection(scope.shared))
        seen |= {each.name.lower() for each in frame.columns}
        made = replace(made, columns=(*made.columns, *kept.columns))
        if not kept.is_complete:
            first = made.is_complete and len(frames) == 1
            made = replace(made, is_complete=False, rest=kept.rest if first else None, hidden=made.hidden | kept.hidden)
    if table is None and scope.shared:  # Spark puts these first
        places = {name: place for place, name in enumerate(scope.shared)}
        columns = sorted(made.columns, key=lambda each: places.get(each.name.lower(), len(places)))
        made = replace(made, columns=tuple(columns))
    return made


def _with_column(made: Frame, node: exp.Expr, scope: _Scope) -> Frame:
    alias = node.alias if isinstance(node, exp.Alias) else ""
    inner = node.this if isinstance(node, exp.Alias) else node
    if isinstance(node, exp.Aliases) or not (alias or isinstance(inner, exp.Column)):
        return replace(made, is_complete=False, rest=None)  # Spark makes a name, or several
    found = scope.column(inner) if isinstance(inner, exp.Column) else None
    origins = scope.origins(inner)
    kind = found.type if found is not None else None
    if isinstance(inner, (exp.Cast, exp.TryCast)):
        kind = _type(inner.to)
    column = FrameColumn(alias or inner.name, kind, origins)
    if alias or not isinstance(inner, exp.Column) or len(inner.parts) > 1:  # else the name is that of the column anyway
        scope.aliases[column.name.lower()] = origins if column.name.lower() not in scope.aliases else None
    return replace(made, columns=(*made.columns, column))


def _distinct(frame: Frame) -> Frame:
    """Return it such that of columns of one name none has origins."""
    names = [each.name.lower() for each in frame.columns]
    columns = tuple(
        each if names.count(each.name.lower()) == 1 else replace(each, origins=None) for each in frame.columns
    )
    return replace(frame, columns=columns)
