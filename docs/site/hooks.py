"""Hooks of mkdocs: README.md is the first page, and links to files outside of docs/ become their paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent.parent
_OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>(\.\./|deploy/)[^)#]*)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add README.md as the first page; its links start at the root of the repository."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"\]\((?!docs/|https?:|#)", "](../", text).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Say where a file is that the site does not have."""

    def path(link: re.Match[str]) -> str:
        name = link["path"].removeprefix("../") if link["path"].startswith("../") else f"docs/{link['path']}"
        return f"`{name}`" if link["text"].strip("`") in name else f"{link['text']} (`{name}`)"

    return _OUTSIDE.sub(path, markdown)
