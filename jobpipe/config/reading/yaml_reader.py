"""A YAML file to a tree with places: bounded, without tags, each key once and as it is written.

Texts, whole numbers, fractions, true, false and null are as in YAML 1.2: ``NO``, ``on`` and ``10:30`` are texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import yaml

from jobpipe.config.reading.located_values import FilePlace, Path, Scalar, TreeNode
from jobpipe.errors import short_repr

MAX_BYTES = 1 << 20  # most files have a few KiB; more is some other file
MAX_DEPTH = 50
MAX_NODES = 20_000  # values of one file, those of aliases counted at each use
GIVE_ONCE = "give it once"
Tell = Callable[[FilePlace, Path, str, str], None]
"""Takes what is wrong: where, of which key, what it is, and what to do."""
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Composes nodes of YAML 1.2's plain types, so deep and so many at most."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as PyYAML has it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0
        self.tags: dict[int, str] = {}
        """Which nodes have a tag that the file names, by their id."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node and all below it."""
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_NODES:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            bound = f"at most {MAX_DEPTH} levels" if self._depth > MAX_DEPTH else f"at most {MAX_NODES} values"
            raise yaml.MarkedYAMLError(None, None, f"the file may have {bound}", mark)
        tag = getattr(self.peek_event(), "tag", None)  # type: ignore[no-untyped-call]
        node: yaml.Node | None = super().compose_node(parent, index)
        if tag is not None:
            self.tags[id(node)] = tag
        self._depth -= 1
        return node


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]{0,18})", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,3})?", "-+.0123456789"),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(_TAG + _tag, re.compile(f"(?:{_pattern})\\Z"), list(_first))


def scalar_of(text: str) -> Scalar:
    """Return what YAML makes of an unquoted ``text``."""
    tag = _Loader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _scalar(text, str(tag).removeprefix(_TAG))


def _scalar(text: str, kind: str) -> Scalar:
    if kind == "bool":
        return text.lower() == "true"
    if kind == "null":
        return None
    if kind == "int":
        return int(text)
    return float(text) if kind == "float" else text


def read_tree(content: bytes, file: str, tell: Tell) -> TreeNode | None:
    """Return what a file's content says, null if it is empty; None, with what is wrong, if it is none.

    Args:
        content: of more than :data:`MAX_BYTES` the first ones are enough.
    """
    loader = None
    try:
        if len(content) > MAX_BYTES:
            tell(
                FilePlace(file), (), f"it is larger than {MAX_BYTES} bytes", "name the right file; most have a few KiB"
            )
            return None
        text = content.decode("utf-8-sig")
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return TreeNode(None, FilePlace(file, 1, 1))
        walk = _Walk(file, tell, loader.tags)
        tree = walk.node(root, (), 0)
        return tree if walk.whole else None
    except UnicodeDecodeError as error:
        place = FilePlace(file, content.count(b"\n", 0, error.start) + 1)
        tell(place, (), "it is not text in UTF-8", "save it in UTF-8")
    except yaml.reader.ReaderError as error:
        place = FilePlace(file, text.count("\n", 0, error.position) + 1)
        tell(place, (), f"character #x{_code(error.character):04x} cannot be in YAML", "remove it")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        tell(FilePlace(file, None if mark is None else mark.line + 1), (), *_why(error))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        tell(FilePlace(file), (), f"it is not YAML ({type(error).__name__})", "check it with an editor")
    finally:
        if loader is not None:
            loader.dispose()
    return None


def _code(character: object) -> int:
    return ord(character) if isinstance(character, str) else int(str(character))


_PARSER_WORDS = (
    (
        "mapping values are not allowed here",
        "here is a second `key:` on one line, or a `key:` under a line that has a value or no `:`",
        "write each key on a line of its own, indented as its siblings are; a value with `: ` in it needs quotes",
    ),
    (
        "could not find expected ':'",
        "a line before this one has neither a `:` nor a `-`, or a quote there is not closed",
        "write `key: value`; close the quote",
    ),
    (
        "parsing a block mapping expected <block end>",
        "the indentation of this line is that of no section above it, or a `-` is missing or too much",
        "indent it as its siblings are",
    ),
    (
        "parsing a block collection expected <block end>",
        "this line is indented as the `-` of the list above it, and begins with none",
        "begin it with `-`, or indent it as the section to which it belongs",
    ),
    ("expected ',' or ']'", "a `[` is not closed, or a comma is missing", "close it by `]`"),
    ("expected ',' or '}'", "a `{` is not closed, or a comma is missing", "close it by `}`"),
    ("scanning a quoted scalar found unexpected", "a quote is not closed", "close it"),
    ("that cannot start any token", "a value cannot begin with this character", "put the value in quotes"),
    ("sequence entries are not allowed here", "a list cannot begin here", "begin it on the next line, or write [a, b]"),
)
"""What PyYAML says, and what it means here and what to do."""


def _why(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    said = " ".join(filter(None, (error.context, error.problem)))
    if "\\t" in said:
        return "there is a tab where YAML needs spaces", "indent with spaces"
    if error.problem and error.problem.startswith("the file may have"):
        return error.problem, "make it simpler"
    if "but found another document" in said:
        return "it holds a second document (---)", "a file is one document"
    if error.problem and "undefined alias" in error.problem:
        return error.problem, "define it above by &NAME"
    for words, what, remedy in _PARSER_WORDS:
        if words in said:
            return what, remedy
    return f"it is not YAML: {said}", "check indentation, quotes and brackets there"


class _Walk:
    """Makes the tree out of YAML's nodes."""

    def __init__(self, file: str, tell: Tell, tags: Mapping[int, str]) -> None:
        self._file = file
        self._tell = tell
        self._tags = tags
        self._count = 0
        self.whole = True  # False: it was cut off

    def node(self, raw: yaml.Node, path: Path, depth: int) -> TreeNode:
        """Return the tree of one node; an alias is written out, within the bounds."""
        place = self._place(raw)
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_NODES:
            if self.whole:
                what = f"its aliases make more than {MAX_NODES} values, or {MAX_DEPTH} levels, of it"
                self._tell(place, path, what, "write the sections out")
            self.whole = False
            return TreeNode(None, place)
        if isinstance(raw, yaml.MappingNode):
            self._refuse_tag(raw, path)
            return TreeNode(self._section(raw, path, depth), place)
        if isinstance(raw, yaml.SequenceNode):
            self._refuse_tag(raw, path)
            return TreeNode([self.node(each, (*path, i), depth + 1) for i, each in enumerate(raw.value)], place)
        if self._refuse_tag(raw, path):
            return TreeNode(str(raw.value), place)
        return TreeNode(_scalar(raw.value, raw.tag.removeprefix(_TAG)), place)

    def _section(self, raw: yaml.MappingNode, path: Path, depth: int) -> dict[str, TreeNode]:
        into: dict[str, TreeNode] = {}
        merged: dict[str, TreeNode] = {}
        for key, value in raw.value:
            if self._refuse_tag(key, path):
                continue
            if key.tag == f"{_TAG}merge":
                merged |= self._merged(value, path, depth)
                continue
            if not isinstance(key, yaml.ScalarNode) or not key.value or "${" in key.value:
                empty = isinstance(key, yaml.ScalarNode) and not key.value
                remedy = "give it a name" if empty else "write it without ${…} or brackets"
                self._tell(self._place(key), path, "a key must be a plain name", remedy)
                continue
            name = str(key.value)
            node = replace(self.node(value, (*path, name), depth + 1), key=self._place(key))
            if (earlier := into.setdefault(name, node)) is not node:
                what = f"the key is in line {earlier.shown_at.line} already"
                self._tell(node.shown_at, (*path, name), what, GIVE_ONCE)
        return {**merged, **into}

    def _merged(self, value: yaml.Node, path: Path, depth: int) -> dict[str, TreeNode]:
        found: dict[str, TreeNode] = {}
        for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            section = self.node(each, path, depth + 1)
            if isinstance(section.value, dict):
                found = {**section.value, **found}
            else:
                self._tell(self._place(each), path, "<< takes a section", "name one by *NAME")
        return found

    def _refuse_tag(self, raw: yaml.Node, path: Path) -> bool:
        tag = self._tags.get(id(raw))
        if tag is not None:
            shown = f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
            what = f"YAML's tag {short_repr(shown)} is not read"
            self._tell(self._place(raw), path, what, "write the plain value, in quotes if it is a text")
        return tag is not None

    def _place(self, raw: yaml.Node) -> FilePlace:
        return FilePlace(self._file, raw.start_mark.line + 1, raw.start_mark.column + 1)
