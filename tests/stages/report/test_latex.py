"""LaTeX that a document with booktabs can take, whatever names users give."""

import re

import pytest

from permafrost.stages.report.cells import read_results
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.markup import escaped, floating, tabular
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.results_files import results_latex
from permafrost.stages.report.tables import tabulate
from tests.stages.report.fake_results import Grid

SPECIAL = "\\{}&%$#_~^"
EVIL = "a & b_% $x^2$ {#} ~ \\input{/etc/passwd} <b> | 1 − 2 ± 3 …"

_COMMANDS = (
    r"\\(begin|end)\{(table|tabular)\}(\{[lr]+\})?|\\(caption|textbf)\{|\\label\{tab:[a-z]+\}|"
    r"\\(centering|toprule|midrule|bottomrule|\\)|\\(text[a-z]+|ldots)\{\}|\\[{}&%$#_]"
)


def cells_of(line: str) -> list[str]:
    """Cells of a row: parted by an ampersand that no backslash stands before."""
    return [c.strip() for c in re.split(r"(?<!\\)&", line.removesuffix("\\\\"))]


def checked(source: str) -> list[list[str]]:
    """Rows of a document's table, once every construct in it is one we mean to write."""
    body = source.removeprefix("% needs \\usepackage{booktabs}\n")
    assert "%" not in re.sub(r"\\%", "", body), "a comment would swallow the rest of a line"
    # Mathematics is four symbols and nothing of the user's.
    without = re.sub(r"\$(\\pm|-|\\times|\\approx|\^\{\\approx\})\$", "", body)
    without = re.sub(
        _COMMANDS, lambda m: "{" if m[0].endswith("{") and m[0] != "\\{" else "", without
    )
    assert not re.search(r"[\\$#_~^<>|\"]", without), without
    depth = 0
    for c in without:
        depth += {"{": 1, "}": -1}.get(c, 0)
        assert depth >= 0
    assert depth == 0
    inside = body[body.index("\\toprule") : body.index("\\bottomrule")]
    rows = [line for line in inside.splitlines() if not line.startswith(("\\toprule", "\\midrule"))]
    assert all(row.endswith("\\\\") for row in rows)
    assert not any(re.match(r"\s*[\[*]", row) for row in rows), (
        "read as an argument of the rule before"
    )
    return [cells_of(row) for row in rows]


def test_every_special_character_is_escaped():
    assert escaped(SPECIAL) == (
        r"\textbackslash{}\{\}\&\%\$\#\_\textasciitilde{}\textasciicircum{}"
    )
    assert escaped("−1 ± 2 × 3 ≈ 4 – …") == r"$-$1 $\pm$ 2 $\times$ 3 $\approx$ 4 -- \ldots{}"
    assert escaped("a\n b\tc\x00\u200b") == "a b c"
    assert escaped('"a" <b> |c|') == r"''a'' \textless{}b\textgreater{} \textbar{}c\textbar{}"
    assert escaped("é 方法") == "é 方法"


@pytest.mark.parametrize("name", ["[CLS]", "*", " [x"])
def test_a_name_that_a_rule_would_take_as_its_argument_is_guarded(name: str):
    assert escaped(name) == "{}" + name.strip()


def test_the_results_are_a_table_with_the_best_in_bold(grid: Grid):
    table = tabulate(read_results(grid.cells))
    source = results_latex(table, "Signal dilution")
    rows = checked(source)
    assert source.count("\\begin{tabular}{lrrr}") == source.count("\\end{table}") == 1
    assert source.count("\\midrule") == 3, "head, methods, controls, majority"
    assert rows[0] == ["method", "ratio 0.2", "ratio 0.8", "seeds"]
    assert rows[1] == ["", "accuracy", "accuracy", ""]
    by_name = {row[0]: row[1:] for row in rows}
    for row in table.rows:
        shown = by_name[f"{row.method} (control)" if row.role == "control" else row.method]
        for i, (cell, found) in enumerate(zip(shown, row.entries, strict=False)):
            assert found is not None
            text = found.text.replace("±", "$\\pm$").replace("–", "--")
            assert cell == (f"\\textbf{{{text}}}" if table.is_best(row, i) else text)
        assert shown[-1] == str(row.n_seeds)
    assert by_name["majority class"] == ["50.0", "50.0", "--"]


def test_names_of_any_kind_do_not_break_the_table(make_grid):
    grid = make_grid(
        tasks=[EVIL, "[b]"], methods=["[m", "*", EVIL + "m"], controls=["\\\\ c &"], seeds=[0]
    )
    results = read_results(grid.cells)
    table = annotated(tabulate(results), results, ReportConfig(title="t"))
    rows = checked(results_latex(table, EVIL))
    assert {len(row) for row in rows} == {5}
    assert rows[0][1] == escaped(EVIL)
    assert [row[0] for row in rows[2:5]] == ["{}[m", "{}*", escaped(EVIL + "m")]


def test_a_table_of_one_group_has_no_rule_inside():
    source = tabular("ll", [[["a", "b"]], []])
    assert source == "\\begin{tabular}{ll}\n\\toprule\na & b \\\\\n\\bottomrule\n\\end{tabular}\n"
    assert "\\caption{c}" in floating(source, "c", "x")
