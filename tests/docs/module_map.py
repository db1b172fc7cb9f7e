"""The map of modules: ``python -m tests.docs.module_map`` writes it into docs/design.md and docs/modules.md.

What is said of packages and modules is the first line of their docstrings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ROOT

DESIGN = ROOT / "docs" / "design.md"
MODULES = ROOT / "docs" / "modules.md"
BEGIN, END = "<!-- packages: printed by python -m tests.docs.module_map -->\n", "<!-- end of packages -->\n"
HEAD = """# Modules

Every package and every module, by the first line of its docstring. [design.md](design.md) says how they work together.
This page is printed from the tree: `python -m tests.docs.module_map`.
"""


def packages() -> Iterator[Path]:
    """Yield the folders of modules, those of jobpipe first, parents before their children."""
    for base in (ROOT / "jobpipe", ROOT / "registry" / "jobpipe_registry"):
        yield from sorted({path.parent for path in base.rglob("*.py")})


def modules_of(package: Path) -> list[Path]:
    """Return a package's modules in the order of their names."""
    return sorted(path for path in package.glob("*.py") if path.name != "__init__.py")


def first_line(module: Path) -> str:
    """Return the first line of a module's docstring, fit for a cell of a table."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return text.partition("\n")[0].replace("``", "`").replace("|", "\\|").removesuffix(".")


def packages_table() -> str:
    """Return the table of packages."""
    rows = [
        f"| `{package.relative_to(ROOT)}` | {first_line(package / '__init__.py')} | {len(modules_of(package))} |"
        for package in packages()
    ]
    return "\n".join(["| package | what is in it | modules |", "|---|---|---|", *rows]) + "\n"


def modules_page() -> str:
    """Return the page of all modules."""
    parts = [HEAD]
    for package in packages():
        rows = [f"| `{module.name}` | {first_line(module)} |" for module in modules_of(package)]
        table = "\n".join(["| module | what is in it |", "|---|---|", *rows, ""]) if rows else ""
        parts.append(f"## {package.relative_to(ROOT)}\n\n{first_line(package / '__init__.py')}.\n\n{table}")
    return "\n".join(parts).rstrip("\n") + "\n"


def design_page(page: str) -> str:
    """Return docs/design.md with the table of packages as the tree has it."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{packages_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    DESIGN.write_text(design_page(DESIGN.read_text()))
    MODULES.write_text(modules_page())
