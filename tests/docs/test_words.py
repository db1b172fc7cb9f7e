"""Words: the plain English of docs, messages and comments. Some words show that a sentence was translated."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSLATED = {
    "amongst": "among",
    "anew": "again",
    "behind": "after; next to; batches that were not read",
    "beside": "next to; besides",
    "hence": "so",
    "hitherto": "until now",
    "nobody": "no publisher, no reader; it is not known whether",
    "shall": "must, should; will",
    "somebody": "a user, a process, a peer",
    "thereof": "of it",
    "thus": "so",
    "whoever": "a process that; anyone who",
    "needs it not": "does not need it",
    "that there is not": "that does not exist",
    "there are news": "there is news",
    "waiting since": "waiting for",
}
SHAPES = {  # of sentences, in code and pages
    r"\b(is|are) told\b(?! apart)": "say who does it: reports, sends, knows, learns, gets",
    r"(?:^|[.:;\"] )Of (which|those|that)\b": "begin with the subject",
    r"\bno more(\.|\"\"\"|$)": "no longer; at most; stop",
    r"\bNone: there is none\b": "None if there is none",
}
MEANT = (  # and not translated
    "batches behind",
    "'row')}) behind",
    "subscriptions are behind",
    "leaves the Python process behind",
    "the class behind ``jobpipe.registerserver.handler``",
    "nobody has ever published it",
)
PLACES = ("jobpipe", "registry", "docs", "examples", "conf")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
KINDS = {".py", ".md", ".yaml"}


def _texts() -> list[Path]:
    below = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in KINDS]
    return sorted(path for path in below + [ROOT / page for page in PAGES] if path.is_file())


def test_no_word_that_reads_translated() -> None:
    """What to write instead is in the table, and what is meant in the list below it."""
    words = re.compile(rf"\b({'|'.join(TRANSLATED)})\b", re.IGNORECASE)
    meant = re.compile("|".join(map(re.escape, MEANT)))
    texts = _texts()
    assert {path.suffix for path in texts} == KINDS
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word}: {TRANSLATED[word.lower()]}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in words.findall(meant.sub("", line))
    ]
    assert found == []


def test_no_sentence_that_reads_translated() -> None:
    """Its shape shows it: a subject that is missing, or that comes last."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {SHAPES[shape]}: {line.strip()}"
        for path in _texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for shape in SHAPES
        if re.search(shape, line)
    ]
    assert found == []


def test_all_that_is_meant_is_there() -> None:
    text = "\n".join(path.read_text() for path in _texts())
    assert [phrase for phrase in MEANT if phrase not in text] == []
