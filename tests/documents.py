"""The project's pages, and the snippets in them that tests run: those below a mark `<!-- test: NAME -->`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def text_of(document: Path) -> str:
    """A page."""
    return document.read_text(encoding="utf-8")


def name_of(document: Path) -> str:
    """Its path from the root of the repository, for names of tests and messages."""
    return document.relative_to(ROOT).as_posix()


def marked(mark: str, language: str = "") -> list[str]:
    """The code blocks right below `<!-- mark -->`, of all pages in their order."""
    found = rf"^<!-- {re.escape(mark)} -->\n+```{language}\n(.*?)^```$"
    return [block for page in DOCUMENTS for block in re.findall(found, text_of(page), re.M | re.S)]


def snippet(name: str) -> str:
    """The Python snippet of this name. It may stand on several pages, and is the same on all of them."""
    (block,) = set(marked(f"test: {name}", "python"))
    return block
