"""The pages of the site: those of the repository, those made from the code, and the navigation."""

import os
import re
import shutil
from pathlib import Path

from docs.site.fields import written_pages as pages_of_fields
from docs.site.names import written_pages as pages_of_names

ROOT = Path(__file__).parents[2]
HOME = "index"
"""The README, as the site's first page."""
NAVIGATION = {
    "Using it": (
        "docs/how-it-works docs/experiment docs/data docs/heads docs/embedding docs/finetuning docs/graphs "
        "docs/probes docs/evaluation docs/report docs/commands docs/plan docs/python docs/encoder "
        "docs/predict docs/store docs/store-tables docs/sharing docs/artifacts docs/history "
        "docs/retention"
    ),
    "Running it": "docs/nightly docs/deploy docs/workers docs/sizes docs/limits",
    "Reference": "reference/fields/index reference/names/index docs/glossary",
    "The papers": "docs/papers docs/papers/glot docs/papers/gt2vec docs/papers/va",
    "Changing it": "docs/extending docs/tree docs/decisions/index docs/LOG CHANGELOG benchmarks/README",
}
"""Pages by the heading they stand under. A new one that is not named stands under the first."""
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)((?:#[^)]*)?)\)")


def sources() -> list[Path]:
    """Every page of the repository."""
    others = [ROOT / name for name in ("README.md", "CHANGELOG.md", "benchmarks/README.md")]
    return [*others, *sorted((ROOT / "docs").rglob("*.md"))]


def site_path(page: Path) -> str:
    """Where a page of the repository is among those of the site."""
    path = page.relative_to(ROOT).as_posix()
    return f"{HOME}.md" if path == "README.md" else path


def written_pages() -> dict[str, str]:
    """The text of every page of the site, by path."""
    pages = {site_path(page): _with_site_links(page) for page in sources()}
    pages |= pages_of_fields() | pages_of_names()
    decisions = sorted(Path(path).stem for path in pages if path.startswith("docs/decisions/"))
    pages["docs/decisions/index.md"] = "# Decisions\n\nOne page each.\n\n" + _tree(
        decisions, "maxdepth: 1"
    )
    pages[f"{HOME}.md"] += "\n" + "\n".join(
        _tree(names, f"caption: {caption}", "hidden:")
        for caption, names in navigation(pages).items()
    )
    return pages


def navigation(pages: dict[str, str]) -> dict[str, list[str]]:
    """The names of pages by heading. A page that is new and named nowhere is not lost."""
    named = {caption: names.split() for caption, names in NAVIGATION.items()}
    known = {HOME, *(name for names in named.values() for name in names)}
    below = ("docs/decisions/", "reference/")
    new = [path.removesuffix(".md") for path in pages if not path.startswith(below)]
    named["Using it"] += sorted(name for name in new if name not in known)
    return named


def write_pages(folder: Path) -> None:
    """Write every page, and beside it the files that pages of the repository link to; nothing else stays.

    A page that has not changed keeps its time, so that it is not read again.
    """
    pages = written_pages()
    kept = {folder / path for path in pages}
    for path, text in pages.items():
        file = folder / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    for page in sources():
        for target, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            linked = (page.parent / target).resolve()
            if linked.is_file() and linked.suffix != ".md":
                copy = folder / linked.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(linked, copy)
                kept.add(copy)
    for file in folder.rglob("*"):
        if file.is_file() and file not in kept:
            file.unlink()


def _with_site_links(page: Path) -> str:
    """A page's text, whose links lead to the same places on the site."""

    def moved(link: re.Match[str]) -> str:
        target = (page.parent / link[1]).resolve()
        if target.is_dir():
            target /= "index.md"
        if target == ROOT / "README.md":
            target = ROOT / f"{HOME}.md"
        return f"]({os.path.relpath(target, page.parent)}{link[2]})"

    return _LINK.sub(moved, page.read_text(encoding="utf-8"))


def _tree(names: list[str], *options: str) -> str:
    lines = [*(f":{option}" if ":" in option else f":{option}:" for option in options), "", *names]
    return "```{toctree}\n" + "\n".join(lines) + "\n```\n"
