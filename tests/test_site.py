"""The site: every field and every public name has a place in it, and it needs nothing from elsewhere."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import permafrost
from docs.site import names
from docs.site.fields import Part, field_pages, our_kinds, own_docstring, written_pages
from docs.site.pages import NAVIGATION, navigation
from docs.site.pages import written_pages as all_pages
from permafrost.flows.experiment import Experiment
from permafrost.stages.kinds import all_categories
from tests.documents import DOCUMENTS, ROOT, name_of, text_of


def needs_sphinx(test: Any) -> Any:
    """A long test, for which the extra `docs` has to be there: `make test` leaves it out, as the package
    itself never builds the site."""
    missing = importlib.util.find_spec("sphinx") is None
    test = pytest.mark.skipif(missing, reason="the extra 'docs' is missing")(test)
    return pytest.mark.deep(pytest.mark.timeout(1200)(test))


LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Elements that make a browser fetch something by itself."""


@pytest.fixture(scope="module")
def parts() -> dict[type[BaseModel], Part]:
    return {part.model: part for page in field_pages() for part in page.parts}


def test_every_kind_and_every_field_is_in_the_reference(
    parts: dict[type[BaseModel], Part],
) -> None:
    ours = {kind for category in all_categories() for kind in our_kinds(category).values()}
    assert {Experiment, *ours} <= set(parts)
    for model, part in parts.items():
        told = {field.name for field in part.fields}
        missing = set(model.model_fields) - told
        # The field that names the kind is in the heading.
        assert len(missing) <= 1
        for name in missing:
            (value,) = get_args(model.model_fields[name].annotation)
            assert f"{name}: {value}" in part.title
        pages = "\n".join(written_pages().values()) if model is Experiment else ""
        assert all(f"\n`{name}`\n: " in pages for name in told if pages)


def test_every_field_and_kind_says_what_it_means(parts: dict[type[BaseModel], Part]) -> None:
    silent = [
        f"{model.__name__}.{field.name}"
        for model, part in parts.items()
        for field in part.fields
        if not field.meaning
    ]
    assert silent == []
    assert [model.__name__ for model in parts if not own_docstring(model)] == []


def test_a_field_is_described_with_its_type_its_bounds_and_its_default() -> None:
    pages = written_pages()
    head = pages["reference/fields/head.md"]
    assert "## `kind: glot`\n" in head
    assert "\n`n_convs`\n: whole number, at least 0, at most " in head
    assert "\n`jumping`\n: `cat`, `max`, `mean` or `none`; default `cat`\n" in head
    assert (
        "\n`conv`\n: a [convolution](convolution.md), or its name alone; default `{kind: gat}`"
        in head
    )
    experiment = pages["reference/fields/experiment-fields.md"]
    assert (
        "\n`methods`\n: by name: a [method](method.md), at least 1 entries; has to be given\n"
        in experiment
    )
    assert "\n`memory_bytes`\n: whole number, at least 1" in experiment


def test_every_public_name_has_an_entry_and_a_docstring() -> None:
    text = "\n".join(names.written_pages().values())
    entries = re.findall(r"^\.\. auto(?:function|class|exception):: (.*)$", text, re.M)
    assert len(entries) == len(set(entries))
    assert {f"permafrost.{name}" for name in permafrost.__all__} <= set(entries)
    for path in entries:
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        assert own_docstring(found) if isinstance(found, type) else found.__doc__, path


def test_every_page_has_a_place() -> None:
    pages = all_pages()
    placed = [f"{name}.md" for names in navigation(pages).values() for name in names]
    assert len(placed) == len(set(placed))
    assert set(placed) <= set(pages)
    assert all(name in pages["index.md"] for names in NAVIGATION.values() for name in names.split())
    new = {**pages, "docs/brand-new.md": "# New"}
    assert "docs/brand-new" in navigation(new)["Using it"]
    decisions = {Path(name_of(d)).stem for d in DOCUMENTS if d.parent.name == "decisions"}
    assert decisions <= set(pages["docs/decisions/index.md"].splitlines())


class _Loads(HTMLParser):
    """What a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADS and given.get(LOADS[tag]):
            self.found.append(given[LOADS[tag]] or "")
        self.found += re.findall(r"url\((.*?)\)", given.get("style") or "")


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.night
@needs_sphinx
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    site = tmp_path / "site"
    built = _python("-m", "docs.site.build", str(site))
    assert (built.returncode, built.stderr) == (0, "")
    for page in ("index", "docs/store", "docs/decisions/index", "docs/LOG", "CHANGELOG", "search"):
        assert (site / f"{page}.html").is_file(), page
    assert "n_convs" in (site / "reference/fields/head.html").read_text(encoding="utf-8")
    assert "overrides" in (site / "reference/names/permafrost.html").read_text(encoding="utf-8")
    assert "n_conv" in (site / "searchindex.js").read_text(encoding="utf-8"), "words are stemmed"
    ours = "\n".join(map(text_of, DOCUMENTS))
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert [a for a in re.findall(r'href="(https?://[^"]*)"', text) if a not in ours] == [], (
            page
        )
        loads = _Loads()
        loads.feed(text)
        assert [one for one in loads.found if re.match(r"(https?:)?//", one)] == [], page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text), sheet
    for script in site.rglob("*.js"):
        text = script.read_text(encoding="utf-8", errors="replace")
        assert not re.search(
            r"(fetch|import|importScripts|open)\(\s*[\"'`](GET[\"'], *[\"'])?https?:", text
        )


NOWHERE = {
    "[a page](nowhere.md)": "nowhere.md",
    "[a heading](#no-such-heading)": "no-such-heading",
    "```{eval-rst}\n.. autofunction:: permafrost.nothing\n```": "import 'nothing'",
}


@needs_sphinx
def test_a_page_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("\n\n".join(["# Home", *NOWHERE]) + "\n")
    call = "import sys; from pathlib import Path; from docs.site.build import build_from; "
    call += "sys.exit(build_from(Path(sys.argv[1]), Path(sys.argv[2])))"
    built = _python("-c", call, str(tmp_path / "pages"), str(tmp_path / "site"))
    assert built.returncode == 1
    for says in NOWHERE.values():
        assert says in built.stderr, built.stderr
