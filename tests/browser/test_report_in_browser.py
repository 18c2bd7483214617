"""The report as a browser shows it: content, layout, colours, keyboard, print; nothing from elsewhere."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.devtools import Browser, Scheme
from tests.browser.full_report import MAPPED_TASKS, METHODS, N_MAPPED, N_PARAMETERS
from tests.stages.report.fake_results import Grid, results_table

pytestmark = pytest.mark.deep

TAB = ("Tab", 9)
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
FOCUSABLE = "a[href], summary, button, input, [tabindex]"
VISIBLE_FOCUSABLE = (
    f"[...document.querySelectorAll({FOCUSABLE!r})].filter(e => e.checkVisibility())"
)


@pytest.fixture
def page(browser: Browser, report: Path) -> Browser:
    """The report at 1,100 pixels in the light scheme."""
    browser.open(report / "report.html")
    return browser


def texts(page: Browser, selector: str) -> list[str]:
    """Text of all elements, white space made single."""
    found: list[str] = page.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)"
    )
    return [" ".join(text.split()) for text in found]


def unfold(page: Browser) -> None:
    """Open everything that is folded."""
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def test_title_headings_and_sections_are_there_and_the_navigation_leads_to_them(page: Browser):
    assert page.evaluate("document.title") == "Every section"
    assert texts(page, "h1") == ["Every section"]
    targets = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    sections = page.evaluate("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert targets == sections
    assert len(sections) == 18
    assert sections[:4] == ["results", "claims", "figure", "about"]
    gaps = page.evaluate(
        "[...document.querySelectorAll('nav a')].map(a => {"
        " a.click(); return document.querySelector(a.hash).getBoundingClientRect().top"
        " - document.querySelector('nav').getBoundingClientRect().bottom; })"
    )
    assert min(gaps[:-2]) > -2, "no heading is under the links, which stay in sight"
    assert max(gaps[:-2]) < 70, "each link scrolls to its section; the last may lie below the end"
    assert page.evaluate("document.querySelector('nav').getBoundingClientRect().top") == 0


def test_the_results_table_shows_every_number(page: Browser, full: Grid):
    cells: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('table.results tbody tr')].map(r => [...r.cells].map(c =>"
        " c.firstChild ? c.innerText.replace('≈', '').trim() : ''))"
    )
    shown = {row[0].split("\n")[0].removesuffix("control").strip(): row[1:] for row in cells}
    table = results_table(full.cells)
    for row in table.rows:
        wanted = [e.text for e in row.entries if e is not None]
        assert shown[row.method][: len(wanted)] == wanted
        assert shown[row.method][-2] == str(row.n_seeds)
    (parameters,) = texts(page, f"td[title='{N_PARAMETERS:,}']")
    assert parameters == "1.2 M"


def test_figures_are_drawn_and_no_number_is_missing(page: Browser, report: Path):
    unfold(page)
    boxes: list[dict[str, Any]] = page.evaluate(
        "[...document.querySelectorAll('figure.plot > svg')].map(s => ({"
        "width: s.getBoundingClientRect().width, height: s.getBoundingClientRect().height, "
        "shapes: s.querySelectorAll('path, use').length,"
        " label: s.getAttribute('aria-label')}))"
    )
    pictures = {p.stem for p in (report / "figures").glob("*.png")} - {
        "token_weights",
        "attention_rows",
    }
    assert len(boxes) == len(pictures) >= 9
    for box in boxes:
        assert box["width"] > 400
        assert box["height"] > 100
        assert box["shapes"] > 10
    labels = " ".join(box["label"] for box in boxes)
    assert "90." in labels
    source: str = page.evaluate("document.documentElement.outerHTML")
    assert not re.search(r"\b(undefined|NaN|nan|None|null)\b", source)


def test_nodes_of_graphs_lie_inside_their_drawings(page: Browser):
    drawings: list[dict[str, float]] = page.evaluate(
        """[...document.querySelectorAll('figure.graph svg')].map(s => {
        const all = s.getBoundingClientRect();
        const nodes = [...s.querySelectorAll('.node')].map(n => n.getBoundingClientRect());
        return {n: nodes.length, left: Math.min(...nodes.map(b => b.left - all.left)),
          right: Math.min(...nodes.map(b => all.right - b.right))}; })"""
    )
    assert [d["n"] for d in drawings] == [4] * len(MAPPED_TASKS)
    assert all(d["left"] > -2 and d["right"] > -2 for d in drawings)


def test_the_pointer_on_a_mark_of_a_map_finds_its_text(page: Browser, full: Grid):
    n_marks = page.evaluate("document.querySelectorAll('#maps use > title').length")
    assert n_marks == len(MAPPED_TASKS) * len(METHODS) * N_MAPPED
    unfold(page)
    page.evaluate("document.querySelector('#maps figure > svg').scrollIntoView({block: 'center'})")
    # The last mark drawn lies above all others.
    found = page.evaluate(
        """(() => {
        const marks = document.querySelector('#maps figure > svg').querySelectorAll('use:has(> title)');
        const box = marks[marks.length - 1].getBoundingClientRect();
        const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
        return hit.querySelector('title').textContent; })()"""
    )
    texts = full.corpora[MAPPED_TASKS[0]].texts
    assert any(text.startswith(found.removesuffix("…")) for text in texts)
    assert len(found) > 40


def test_the_console_stays_empty_and_nothing_is_loaded_but_the_page(page: Browser, report: Path):
    assert page.complaints() == []
    assert page.requests() == [(report / "report.html").resolve().as_uri()]


def test_complaints_and_requests_would_be_seen(browser: Browser, tmp_path: Path):
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.log(1); lost()</script><img src=missing.png>")
    browser.open(bad)
    assert len(browser.requests()) == 2
    assert "lost is not defined" in " ".join(browser.complaints())
    assert len(browser.complaints()) == 3


@pytest.mark.parametrize("width", [1100, 400])
def test_light_and_dark_fit_the_window_and_have_their_colours(
    browser: Browser, report: Path, tmp_path: Path, width: int
):
    brightness: dict[str, float] = {}
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        browser.open(report / "report.html", width, scheme, height=4000)
        picture = browser.screenshot(tmp_path / f"{scheme}.png")
        assert picture.shape[1] == width
        sample = picture[::3, ::3].astype(np.int64)
        assert len(np.unique(sample @ [1 << 16, 1 << 8, 1])) > 100
        brightness[scheme] = float((sample @ LUMINANCE).mean() / 255)
        inside, outside = browser.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert inside == outside == width, "the page itself does not scroll sideways"
    assert brightness["dark"] < 0.4 < 0.6 < brightness["light"]


def test_the_table_of_results_fits_a_window_of_1100_pixels(page: Browser):
    overflow = page.evaluate(
        "[...document.querySelectorAll('#results .scroll')].map(e => e.scrollWidth - e.clientWidth)"
    )
    assert overflow[0] == 0


def test_maps_and_token_weights_are_folded_at_first(page: Browser):
    shown = page.evaluate(
        "[...document.querySelectorAll('#maps figure, #tokens figure, #tokens article')]"
        ".filter(e => e.checkVisibility()).length"
    )
    assert shown == 0


def test_on_a_phone_the_methods_stay_and_the_scrollbar_is_under_the_rows(
    browser: Browser, report: Path
):
    browser.open(report / "report.html", 400, "light")
    box: dict[str, float] = browser.evaluate(
        """(() => {
        const box = document.querySelector('#results .scroll'), table = box.querySelector('table');
        const name = table.querySelector('tbody.methods tr:not(.group) th');
        const left = () => name.getBoundingClientRect().left - box.getBoundingClientRect().left;
        const before = left();
        box.scrollLeft = 150;
        return {hidden: box.scrollWidth - box.clientWidth, scrolled: box.scrollLeft, before, after: left(),
          share: name.getBoundingClientRect().width / box.clientWidth,
          below: box.getBoundingClientRect().bottom - table.rows[table.rows.length - 1]
            .getBoundingClientRect().bottom}; })()"""
    )
    assert box["hidden"] > 150
    assert box["scrolled"] == 150
    assert box["before"] == box["after"] == 0
    assert box["share"] < 0.5, "most of the width is for numbers"
    assert box["below"] < 20
    nav = browser.evaluate("document.querySelector('nav').getBoundingClientRect().height")
    assert nav < 60, "one line"


def test_legends_are_legible_on_a_phone(browser: Browser, report: Path):
    browser.open(report / "report.html", 400, "light")
    unfold(browser)
    keys: list[dict[str, float]] = browser.evaluate(
        """[...document.querySelectorAll('.keys li')].map(e => ({
        size: parseFloat(getComputedStyle(e).fontSize), right: e.getBoundingClientRect().right,
        key: e.querySelector('svg').getBoundingClientRect().width}))"""
    )
    assert len(keys) > 20
    for key in keys:
        assert key["size"] >= 11
        assert key["right"] <= 400
        assert key["key"] > 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser: Browser, report: Path, scheme: Scheme):
    """WCAG 2.2, 1.4.3 (AA): a contrast of 4.5 for text."""
    browser.open(report / "report.html", scheme=scheme)
    found: list[dict[str, Any]] = browser.evaluate(
        """(() => {
        const numbers = c => c.match(/[\\d.]+/g).map(Number);
        const behind = e => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e)
          .backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } };
        const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        return [...document.querySelectorAll('body *:not(svg *)')].filter(own).map(e => ({
          text: e.textContent.trim().slice(0, 30), name: e.className,
          ink: numbers(getComputedStyle(e).color).slice(0, 3), paper: behind(e)}));
        })()"""
    )
    assert len(found) > 500
    weak = [f for f in found if contrast(f["ink"], f["paper"]) < 4.5]
    assert weak == []


def contrast(ink: list[float], paper: list[float]) -> float:
    """WCAG's ratio of relative luminances."""
    both = np.array([ink, paper]) / 255
    linear = np.where(both <= 0.04045, both / 12.92, ((both + 0.055) / 1.055) ** 2.4)
    low, high = sorted((linear @ LUMINANCE + 0.05).tolist())
    return high / low


def test_everything_is_reached_by_tab_in_order_and_shows_it(page: Browser):
    n: int = page.evaluate(f"window.wanted = {VISIBLE_FOCUSABLE}, window.wanted.length")
    assert n > 30
    reached: list[int] = []
    for _ in range(n):
        page.press(*TAB)
        at, outline = page.evaluate(
            "[window.wanted.indexOf(document.activeElement),"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        reached.append(at)
        assert outline == "solid"
    assert reached == list(range(n))


def test_what_scrolls_can_be_focused_and_what_unfolds_obeys_the_keyboard(page: Browser):
    page.show_as(400, "light")
    page.press(*TAB)
    folded: int = page.evaluate("document.querySelectorAll('details:not([open])').length")
    assert folded > 5
    page.evaluate("document.querySelector('summary').focus()")
    page.press_enter()
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == folded - 1
    unfold(page)
    lost: list[str] = page.evaluate(
        """[...document.querySelectorAll('body *')]
        .filter(e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) || e.matches('a, summary'))
        .filter(e => { e.focus(); return document.activeElement !== e; }).map(e => e.outerHTML)"""
    )
    assert lost == []
    unnamed = page.evaluate(
        "[...document.querySelectorAll('[tabindex]')].filter(e => !e.ariaLabel).length"
    )
    assert unnamed == 0


def test_it_prints_to_pages_that_hold_the_text(page: Browser):
    content = page.pdf()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) > 3
    page.send("Emulation.setEmulatedMedia", media="print")
    hidden, overflow = page.evaluate(
        "[getComputedStyle(document.querySelector('nav')).display,"
        " getComputedStyle(document.querySelector('.scroll')).overflowX]"
    )
    page.send("Emulation.setEmulatedMedia", media="")
    assert (hidden, overflow) == ("none", "visible")


def test_the_page_needs_no_script(browser: Browser, report: Path):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(report / "report.html")
    document = browser.send("DOM.getDocument", depth=0)["root"]["nodeId"]
    tables = browser.send("DOM.querySelectorAll", nodeId=document, selector="table")["nodeIds"]
    browser.send("Emulation.setScriptExecutionDisabled", value=False)
    summary = json.loads((report / "summary.json").read_text())
    assert len(tables) > len(summary["tasks"])
