import json
import re
import threading
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pydantic import ValidationError

from permafrost.stages.report.config import CurveAxis, ReportConfig, TasksAxis
from permafrost.stages.report.entries import hundredths
from permafrost.stages.report.html import prose
from permafrost.stages.report.markup import literal
from permafrost.stages.report.page_files import page_digest
from permafrost.stages.report.palette import CUSTOM_PROPERTIES, HEAT, SERIES
from permafrost.stages.report.results_files import SCHEMA, results_markdown, results_summary
from permafrost.storage.errors import InputError
from tests.stages.report.fake_results import Grid, results_table, without

VOID = {"meta", "br", "wbr", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Elements with their attributes, text by innermost element, and whether tags are balanced."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.stack: list[str] = []
        self.feed(self.source)
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.stack or "th" in self.stack:
            self.rows[-1][-1] += data

    def row(self, name: str) -> list[str]:
        return next(row for row in self.rows if row[0].split()[0] == name)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def drawings(self) -> list[dict[str, str | None]]:
        """Every picture, less the keys of legends."""
        return [a for a in self.all("svg") if a.get("aria-hidden") != "true"]


def test_all_files_are_written(written: Path):
    names = {str(p.relative_to(written)) for p in written.rglob("*") if p.is_file()}
    assert names == {
        "report.html",
        "results.parquet",
        "results.md",
        "results.tex",
        "tables.md",
        "tables.tex",
        "summary.json",
        "token_summary.parquet",
        "figures/metric.png",
        "figures/learning_curves.png",
        "figures/token_summary.png",
        "figures/token_weights.png",
    }


def test_the_page_shows_the_numbers_of_the_table(written_grid: Grid, written: Path):
    page, table = Page(written / "report.html"), results_table(written_grid.cells)
    for row in table.rows:
        shown = page.row(row.method)
        for column, found in enumerate(row.entries):
            assert found is not None
            assert " ".join(shown[1 + column].split()) == found.text
    assert page.row("majority")[1:3] == ["50.0", "50.0"]


def test_the_best_of_a_column_is_bold_and_controls_are_marked(written: Path):
    source = (written / "report.html").read_text()
    results = source[source.index('class="results wraps"') : source.index('id="figure"')]
    bold = re.findall(r"<strong>([\d.]+)</strong>", results)
    summary = json.loads((written / "summary.json").read_text())
    glot = next(row for row in summary["rows"] if row["method"] == "glot")
    assert bold == [hundredths(cell["mean"]) for cell in glot["cells"]]
    assert results.count('<span class="tag">control</span>') == 2


def test_the_page_refers_to_nothing_outside_itself_and_runs_no_script(written: Path):
    page = Page(written / "report.html")
    assert not re.search(r"https?:|//[a-z]", page.source)
    assert not page.all("script")
    assert not page.all("link")
    assert not page.all("img")
    assert all((a["href"] or "").startswith("#") for a in page.all("a"))
    assert "url(" not in page.source.replace("url(#", "")


def test_ids_are_unique_and_every_reference_has_its_target(written: Path):
    page = Page(written / "report.html")
    ids = Counter(a["id"] for _, a in page.elements if a.get("id"))
    assert ids.most_common(1)[0][1] == 1
    used = {a[key] for _, a in page.elements for key in ("href", "clip-path") if key in a}
    targets = {re.sub(r"url\(#|\)|#", "", str(u)) for u in used}
    assert targets <= set(ids)
    assert all(a["aria-labelledby"] in ids for a in page.all("section"))


def test_tables_have_scopes_and_figures_have_descriptions_and_captions(written: Path):
    page = Page(written / "report.html")
    assert page.all("th")
    assert all(a.get("scope") in ("col", "row", "rowgroup") for a in page.all("th"))
    assert len(page.all("caption")) == 14, "four of them of words, two for each task"
    assert [a["role"] for a in page.drawings] == ["img"] * 3
    assert all(len(str(a["aria-label"])) > 50 for a in page.drawings)
    assert len(page.all("figcaption")) == len(page.all("figure")) == 3
    assert len(page.all("main")) == len(page.all("h1")) == 1
    assert page.all("html")[0]["lang"] == "en"


def test_figures_take_the_colours_of_the_page(written: Path):
    page = Page(written / "report.html")
    svg = page.source[page.source.index("<svg") : page.source.rindex("</svg>")]
    assert "var(--series-0)" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)
    style = page.source[page.source.index("<style>") : page.source.index("</style>")]
    light, dark, *_ = style.split("prefers-color-scheme: dark")
    for colour, name in CUSTOM_PROPERTIES.items():
        prop = name.removeprefix("var(").removesuffix(")")
        assert f"{prop}: {colour};" in light
        assert f"{prop}: #" in dark
    for level, colour in enumerate(HEAT[1:], start=1):
        assert f"--w{level}: {colour};" in light
        assert f"--w{level}: #" in dark


def test_whatever_users_write_is_escaped(make_grid, tmp_path: Path):
    evil = "<script>alert('x')</script>"
    grid: Grid = make_grid(tasks=[evil, "b"], methods=[evil + "m"], controls=[evil + "c"])
    grid.config = ReportConfig(
        title=evil,
        description=f"{evil} `{evil}` **{evil}**\n\n- {evil}",
        x_axis=CurveAxis(label=evil, values={evil: 0.1, "b": 0.2}),
    )
    grid.provenance = {evil: evil, "experiment": evil}
    grid.tokens = {d: [evil if t != "[CLS]" else t for t in ts] for d, ts in grid.tokens.items()}
    for i, _ in enumerate(grid.cells):
        grid.edit_metrics(i, choice={evil: evil})
    page = Page(grid.write(tmp_path / "report") / "report.html")
    assert not page.all("script")
    assert "<script" not in page.source
    assert page.source.count("&lt;script") > 20


@pytest.mark.deep
@pytest.mark.drawn
def test_names_that_matplotlib_would_read_as_markup_are_drawn_as_they_are(
    make_grid, tmp_path: Path
):
    names = ["_hidden", "a$b^c$", "\\frac", "方法", "x" * 300, "a\nb"]
    grid: Grid = make_grid(tasks=["$t$", "任务"], methods=names, controls=["$c"], seeds=[0])
    page = Page(grid.write(tmp_path / "report") / "report.html")
    svg = page.source[page.source.index('id="figure"') : page.source.index('id="about"')]
    assert "_hidden" in svg
    assert "a$b^c$" in svg
    assert "\\frac" in svg
    assert "x" * 19 + "…" in svg


@pytest.mark.deep
def test_the_same_input_gives_the_same_bytes_also_in_threads(grid: Grid, tmp_path: Path):
    folders = [tmp_path / name for name in "ab"]
    threads = [threading.Thread(target=grid.write, args=(f,)) for f in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = (
        {str(p.relative_to(f)): p.read_bytes() for p in f.rglob("*") if p.is_file()}
        for f in folders
    )
    assert len(first) == 12
    assert first == second


def colours_of(path: Path) -> set[str]:
    with Image.open(path) as picture:
        assert picture.convert("RGBA").getchannel("A").getextrema() == (255, 255)
        rgb = np.asarray(picture.convert("RGB"), dtype=np.int64)
    return {f"#{c:06x}" for c in np.unique(rgb @ [1 << 16, 1 << 8, 1]).tolist()}


def test_pictures_are_opaque_and_hold_the_colours_of_the_methods(written: Path):
    for name in ("metric", "learning_curves"):
        assert {*SERIES[:3], "#ffffff"} <= colours_of(written / "figures" / f"{name}.png")
    assert len({*HEAT} & colours_of(written / "figures" / "token_weights.png")) >= 4


def test_results_parquet_and_summary_read_back(written_grid: Grid, written: Path):
    table = pq.read_table(written / "results.parquet")
    assert table.schema.equals(SCHEMA)
    assert table.column("key").to_pylist() == [c.key for c in written_grid.cells]
    summary = json.loads((written / "summary.json").read_text())
    (note,) = summary.pop("notes")
    assert summary.pop("finding").startswith(
        "glot scores highest on average over 2 tasks, with accuracy "
    )
    assert note.startswith("Possibly undertrained: mean on ratio 0.2 (the last epoch kept by")
    assert (
        "Raise <code>max_epochs</code>, or <code>lr</code>" in (written / "report.html").read_text()
    )
    expected = results_summary(results_table(written_grid.cells))
    del expected["notes"]
    assert summary == {"title": "Signal dilution", **expected}
    markdown = results_markdown(results_table(written_grid.cells))
    assert (written / "results.md").read_text() == f"{markdown}\n{literal(note)}\n"


def test_a_missing_cell_is_a_dash(grid: Grid, tmp_path: Path):
    folder = without(grid, "glot", "ratio 0.8").write(tmp_path / "report")
    assert Page(folder / "report.html").row("glot")[2] == "–"


def test_where_nothing_is_trained_or_drawn_no_page_speaks_of_seeds_or_heads(
    make_grid, tmp_path: Path
):
    grid: Grid = make_grid(tasks=["t"], methods=["m", "n"], controls=[], seeds=[0])
    for i, cell in enumerate(grid.cells):
        (cell.folder / "token_weights.parquet").unlink()
        grid.cells[i] = replace(cell, history=None, loss=None)
        grid.edit_metrics(i, n_parameters=0, choice={})
    folder = grid.write(tmp_path / "report")
    words = re.compile(r"\b(seeds?|heads?)\b", re.IGNORECASE)
    for name in ("results.md", "tables.md", "results.tex", "tables.tex"):
        assert [x for x in (folder / name).read_text().splitlines() if words.search(x)] == [], name
    page = re.sub(
        r"<style.*?</style>|<[^>]*>", "", (folder / "report.html").read_text(), flags=re.S
    )
    assert words.findall(page) == []


def test_one_result_is_enough_for_a_report(make_grid, tmp_path: Path):
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=[], seeds=[0])
    (grid.cells[0].folder / "token_weights.parquet").unlink()
    grid.cells[0] = type(grid.cells[0])(**{**vars(grid.cells[0]), "history": None})
    source = (grid.write(tmp_path / "report") / "report.html").read_text()
    assert "1 method · 0 controls · 1 task · 1 seed · 1 result<" in source
    assert "This experiment has no controls." in source
    assert "No method here was trained in epochs." in source
    assert "No method here assigns weights to tokens" in source
    assert not (tmp_path / "report" / "figures" / "learning_curves.png").exists()


@pytest.mark.deep
@pytest.mark.drawn
def test_tasks_can_stand_side_by_side_with_many_methods(make_grid, tmp_path: Path):
    grid: Grid = make_grid(tasks=["a", "b"], methods=[f"m{i}" for i in range(11)], seeds=[0])
    grid.config = ReportConfig(title="t", x_axis=TasksAxis())
    source = (grid.write(tmp_path / "report") / "report.html").read_text()
    assert '<h2 id="figure-h">By task</h2>' in source
    assert "var(--series-7)" in source


def test_metrics_without_a_majority_have_no_baseline_row(make_grid, tmp_path: Path):
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=["c"], seeds=[0])
    for i in range(2):
        grid.edit_metrics(i, metric="spearman", majority=None)
    source = (grid.write(tmp_path / "report") / "report.html").read_text()
    assert "majority class</th>" not in source
    assert "against chance, × 100: the majority rate in accuracy, 0 in MCC" in source


@pytest.mark.drawn
def test_correlations_of_one_seed_are_numbers_without_a_spread(make_grid, tmp_path: Path):
    grid: Grid = make_grid(tasks=["sts"], methods=["mean", "va"], controls=[], seeds=[0])
    grid.config = ReportConfig(title="t")
    for i, value in enumerate((-0.0312, 0.7126)):
        grid.edit_metrics(
            i, metric="spearman", majority=None, dev=None, n_dev=0, test=value, n_parameters=0
        )
        grid.cells[i] = type(grid.cells[i])(**{**vars(grid.cells[i]), "history": None})
    folder = grid.write(tmp_path / "report")
    page = Page(folder / "report.html")
    assert page.row("mean")[1] == "−3.1"
    assert page.row("va")[1] == "71.3"
    assert "±" not in page.source
    assert '<small>spearman, <span class="line">n = 400</span></small>' in page.source
    assert "nothing was trained" in page.source
    (choice,) = [row for row in page.rows if row[:2] == ["sts", "mean"]]
    assert choice[-3:] == ["–", "−3.1", "–"], "dev, test and majority"
    markdown = (folder / "results.md").read_text().splitlines()
    assert markdown[2:] == ["| mean | −3.1 |", "| va | **71.3** |"]
    summary = json.loads((folder / "summary.json").read_text())
    assert [row["cells"][0]["text"] for row in summary["rows"]] == ["−3.1", "71.3"]
    table = pq.read_table(folder / "results.parquet")
    assert table.column("dev").to_pylist() == [None, None]
    svg = page.source[page.source.index('id="figure"') : page.source.index('id="about"')]
    assert "test spearman × 100" in svg
    assert "majority class" not in svg


def test_controls_above_chance_are_said_with_their_tasks(grid: Grid, tmp_path: Path):
    length = next(i for i, c in enumerate(grid.cells) if c.method == "length")
    grid.edit_metrics(length, test=0.61)
    source = (grid.write(tmp_path / "report") / "report.html").read_text()
    assert "1 control result of 4 above chance." in source
    assert '<td class="alarm">above chance</td>' in source


def test_an_axis_value_for_an_unknown_task_is_refused(grid: Grid, tmp_path: Path):
    grid.config = ReportConfig(title="t", x_axis=CurveAxis(label="x", values={"ratio 0.3": 0.3}))
    with pytest.raises(InputError, match=r"task 'ratio 0\.3', but there are results of ratio 0\.2"):
        grid.write(tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_an_axis_is_cut_to_the_tasks_that_have_results():
    axis = CurveAxis(label="x", values={"a": 0.1, "b": 0.2})
    axis.require(["a", "b", "c"])
    with pytest.raises(
        InputError, match=r"places the task 'b', but there are results of a, c; rename"
    ):
        axis.require(["a", "c"])
    assert axis.among(["a", "c"]) == CurveAxis(label="x", values={"a": 0.1})
    assert axis.among(["c"]) == TasksAxis(), "none of them has a place"
    TasksAxis().require([])
    assert TasksAxis().among(["a"]) == TasksAxis()


def test_a_task_without_a_place_on_the_axis_is_in_the_table_only(grid: Grid, tmp_path: Path):
    grid.config = ReportConfig(title="t", x_axis=CurveAxis(label="x", values={"ratio 0.2": 0.2}))
    page = Page(grid.write(tmp_path / "report") / "report.html")
    assert len(page.row("glot")) == 5


def test_a_task_without_corpus_is_refused(grid: Grid, tmp_path: Path):
    del grid.corpora["ratio 0.8"]
    with pytest.raises(InputError, match=r"results on \['ratio 0\.8'\] but only texts of"):
        grid.write(tmp_path / "report")


@pytest.mark.parametrize(
    "wrong",
    [
        {"title": ""},
        {"title": "t", "n_examples": -1},
        {"title": "t", "x_axis": {"kind": "curve", "label": "x", "values": {}}},
        {"title": "t", "x_axis": {"kind": "curve", "label": "x", "values": {"a": float("nan")}}},
        {"title": "t", "x_axis": {"kind": "tasks", "label": "x"}},
    ],
)
def test_wrong_configs_are_refused(wrong: dict[str, object]):
    with pytest.raises(ValidationError):
        ReportConfig.model_validate(wrong)


def test_prose_understands_paragraphs_lists_code_and_bold_and_no_tags():
    assert prose("a **b**\nc\n\n- x\n- `**y**`\n\n<b>&") == (
        "<p>a <strong>b</strong> c</p>\n"
        "<ul><li>x</li><li><code>**y**</code></li></ul>\n"
        "<p>&lt;b&gt;&amp;</p>"
    )
    assert prose("  ") == ""


def test_the_digest_of_template_and_style_is_short_and_stable():
    assert re.fullmatch(r"[0-9a-f]{16}", page_digest())
    assert page_digest() == page_digest()
