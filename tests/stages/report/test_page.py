"""The page's order and layout: the result first, what is long folded, links in sight, room on a phone."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from permafrost.stages.report.canvas import drawing, svg
from permafrost.stages.report.claim_kinds import Claim, Within
from permafrost.stages.report.config import CurveAxis, ReportConfig
from permafrost.stages.report.frame import legend_height
from permafrost.stages.report.main_figure import main_figure
from permafrost.stages.report.page_files import STYLE, asset
from permafrost.stages.report.palette import marks
from tests.stages.report.fake_results import Grid, results_table
from tests.stages.report.test_maps import add_maps
from tests.stages.report.test_report import Page


def rules(*, narrow: bool) -> dict[str, str]:
    """Declarations by selector, of all windows or of narrow ones only."""
    wide, _, rest = asset(STYLE).partition("@media (max-width: 40rem) {")
    found: dict[str, str] = {}
    for selectors, body in re.findall(
        r"([^{}]+)\{([^{}]*)\}", rest.partition("@media")[0] if narrow else wide
    ):
        for selector in selectors.split(","):
            found[selector.strip()] = found.get(selector.strip(), "") + body
    return found


def test_the_page_starts_with_the_sentence_of_result_and_then_the_table(written: Path):
    source = (written / "report.html").read_text()
    body = source[source.index("<body>") :]
    (said,) = re.findall(r'<p class="finding">(.*?)</p>', body)
    assert said.startswith("glot scores highest on average over 2 tasks, with accuracy ")
    places = [
        body.index(text)
        for text in (
            'class="finding"',
            "<nav",
            '<table class="results',
            'id="figure"',
            'id="about"',
        )
    ]
    assert places == sorted(places)
    assert body.index("<table") == body.index('<table class="results'), "the first of all tables"
    above = re.sub(r"<[^>]*>", " ", body[: body.index('<p class="finding"')]).split()
    assert above == ["Permafrost", "report", "Signal", "dilution"]


@pytest.mark.few(1)
@pytest.mark.parametrize("section", ["maps", "tokens"])
def test_maps_and_token_weights_are_folded(grid: Grid, tmp_path: Path, section: str):
    source = (add_maps(grid).write(tmp_path / "report") / "report.html").read_text()
    assert "<details open" not in source
    part = source[source.index(f'<section id="{section}"') :]
    part = part[: part.index("</section>")]
    outside = re.sub(r"<details.*</details>", "", part, flags=re.S)
    assert part.count("<details>") == part.count("<summary>") >= 2
    for tag in ("<svg", "<figure", "<article", "<table"):
        assert tag not in outside
    assert "<h2" in outside


def test_claims_stand_behind_the_table_with_their_comparisons_folded(grid: Grid, tmp_path: Path):
    claims = (
        Claim(says="graphs & <help>", higher="glot", lower=("mean", "scorer")),
        Within(kind="within", says="alike", method="mean", of=("scorer",), points=1.5),
    )
    grid.config = grid.config.model_copy(update={"claims": claims})
    folder = grid.write(tmp_path / "report")
    written, alike = json.loads((folder / "summary.json").read_text())["claims"]
    assert alike["points"] == 1.5
    source = (folder / "report.html").read_text()
    part = source[source.index('<section id="claims"') : source.index('<section id="figure"')]
    assert f"graphs &amp; &lt;help&gt;: <strong>{written['outcome']}</strong>" in part
    assert f"alike (within 1.5 points): <strong>{alike['outcome']}</strong>" in part
    assert part.count('<tr><th scope="row">glot</th>') == len(written["comparisons"]) == 4
    assert part.index("<details>") < part.index("<table")
    assert "Claims, differences" in (folder / "tables.md").read_text()


def test_links_to_all_sections_stay_in_sight(written: Path):
    page = Page(written / "report.html")
    linked = [str(a["href"])[1:] for a in page.all("a")]
    assert linked == [a["id"] for a in page.all("section")]
    source = page.source
    assert source.index("</header>") < source.index("<nav") < source.index("<main>"), (
        "inside the header they would leave with it"
    )
    nav = rules(narrow=False)["nav"]
    assert "position: sticky; top: 0;" in nav
    assert "background: var(--paper)" in nav
    assert "scroll-padding-top" in rules(narrow=False)["html"], "or they would hide headings"
    assert "nowrap" in rules(narrow=True)["nav ul"], "one line where there is little room"


def test_the_column_of_methods_stays_where_a_table_scrolls(written: Path):
    style = rules(narrow=False)
    for selector in ('.scroll tbody th[scope="row"]', ".scroll .stays"):
        assert "position: sticky; left: 0;" in style[selector]
        assert "background: var(--paper)" in style[selector], "numbers pass beneath it"
    assert "max-width" in rules(narrow=True)['.scroll tbody th[scope="row"]']
    source = (written / "report.html").read_text()
    for table in re.findall(r"<table.*?</table>", source, flags=re.S):
        if '<th scope="row"' in table:
            assert len(re.findall(r'<th scope="col" class="stays[ "]', table)) == 1
        else:
            assert 'class="stays' not in table


def test_nothing_stands_between_a_table_and_its_scrollbar(written: Path):
    source = (written / "report.html").read_text()
    boxes = re.findall(r'<div class="scroll"[^>]*>(.*?)</div>', source, flags=re.S)
    assert len(boxes) == source.count("<table")
    assert all(re.fullmatch(r"\s*<table.*</table>\s*", box, flags=re.S) for box in boxes)
    assert "overflow-x: auto" in rules(narrow=False)[".scroll"]
    # A caption below the rows would be inside the box, and the scrollbar under it.
    assert "caption-side: top" in rules(narrow=False)["caption"]
    assert source.count("<caption><span>") == source.count("<caption>")
    assert "position: sticky; left: 0;" in rules(narrow=False)["caption span"]


@pytest.mark.deep
@pytest.mark.drawn
def test_legends_are_text_of_the_page(grid: Grid, tmp_path: Path):
    source = (grid.write(tmp_path / "report") / "report.html").read_text()
    figure = source[source.index('id="figure"') : source.index('id="about"')]
    (legend,) = re.findall(r'<ul class="keys">(.*?)</ul>', figure, flags=re.S)
    names = re.findall(r"</svg>([^<]*)</li>", legend)
    assert names == ["mean", "scorer", "glot", "shuffled", "length", "majority class"]
    drawing = figure[figure.index("</ul>") : figure.index("<figcaption")]
    assert "scorer</text>" not in drawing, "drawn, it would shrink with the figure"
    assert "test accuracy × 100</text>" in drawing
    assert legend.count("var(--series-") >= 3
    assert all(float(px) < 40 for px in re.findall(r' (?:width|height)="([\d.]+)"', legend))
    ids = set(re.findall(r' id="([^"]+)"', source))
    assert set(re.findall(r'href="#([^"]+)"', legend)) <= ids
    keys = rules(narrow=False)[".keys"]
    assert "flex-wrap: wrap" in keys
    (size,) = re.findall(r"font-size: ([\d.]+)rem", keys)
    assert 16 * float(size) >= 11
    # The legend's place is cut off, so that no gap is left.
    top, height = (float(x) for x in re.findall(r'viewBox="0 ([\d.]+) 480 ([\d.]+)"', drawing)[0])
    assert 20 < top < 60
    assert top + height == pytest.approx(256 + legend_height(names), abs=0.5)


@pytest.mark.drawn
def test_a_picture_that_stands_alone_keeps_its_legend(grid: Grid):
    table = results_table(grid.cells)
    with drawing():
        figure = main_figure(grid.config, table, marks(table))
        svg(figure, "f0", "a figure")
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["mean", "scorer"]
    assert figure.legends[0].get_visible()


@pytest.mark.parametrize("axis", ["curve", "tasks"])
def test_bars_end_at_100(make_grid, axis: str):
    grid: Grid = make_grid(tasks=["a", "b"], methods=["m"], controls=[], seeds=[0, 1])
    for i, test in enumerate((0.9, 1.0, 1.0, 1.0)):
        grid.edit_metrics(i, test=test)
    curve = CurveAxis(label="x", values={"a": 0.1, "b": 0.2})
    config = ReportConfig(title="t", x_axis=curve) if axis == "curve" else ReportConfig(title="t")
    table = results_table(grid.cells)
    with drawing():
        (axes,) = main_figure(config, table, marks(table)).axes
    along = 1 if axis == "curve" else 0
    bars = [c for c in axes.collections if isinstance(c, LineCollection)]
    ends = np.concatenate([s[:, along] for c in bars[:2] for s in c.get_segments()])
    assert ends.max() == 100.0
    sd = 100 * np.std([0.9, 1.0], ddof=1)
    assert ends.min() == pytest.approx(95 - sd), "the other end is where it was"
    limits = axes.get_ylim() if axis == "curve" else axes.get_xlim()
    assert max(limits) == 100.0
    assert not any(line.get_clip_on() for line in axes.get_lines()[:1]), "marks at 100 are whole"
