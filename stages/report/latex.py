"""The results as LaTeX, for a document that loads booktabs."""

from collections.abc import Sequence

from permafrost.stages.metrics.records import Role
from permafrost.stages.report.entries import DASH, hundredths
from permafrost.stages.report.tables import PrintedMark, ResultsTable, Row

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "≈": r"$\approx$",
    "–": "--",
    "…": r"\ldots{}",
}
_MARKED: dict[PrintedMark, str] = {
    "plain": "{}",
    "best": r"\textbf{{{}}}",
    "tied": r"{}$^{{\approx}}$",
}


def escaped(text: str) -> str:
    """Text as LaTeX prints it, on one line.

    A `[` or `*` in front is guarded: behind the end of a row LaTeX would read it as an argument.
    """
    line = "".join(c for c in " ".join(text.split()) if c.isprintable())
    guard = "{}" if line.startswith(("[", "*")) else ""
    return guard + "".join(_SPECIAL.get(c, c) for c in line)


def tabular(alignment: str, groups: Sequence[Sequence[Sequence[str]]]) -> str:
    """A booktabs table of cells that are LaTeX already; a rule stands between groups of rows.

    Args:
        alignment: a letter for each column.
        groups: the rows of the head, then those of each part.
    """
    parts = ["".join(f"{' & '.join(row)} \\\\\n" for row in group) for group in groups if group]
    body = "\\midrule\n".join(parts)
    return f"\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{body}\\bottomrule\n\\end{{tabular}}\n"


def floating(table: str, caption: str, label: str) -> str:
    """A table environment around a `tabular`; the caption is LaTeX already."""
    return (
        "% needs \\usepackage{booktabs}\n"
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{caption}}}\n\\label{{tab:{label}}}\n{table}\\end{{table}}\n"
    )


def results_latex(table: ResultsTable, title: str) -> str:
    """The results, best in bold, with the notes as the caption."""
    columns = (*table.columns, *table.averages)
    head = [
        ["method", *(escaped(c.heading) for c in columns), "seeds"],
        ["", *(escaped(c.metric) for c in columns), ""],
    ]
    roles: tuple[Role, ...] = ("method", "baseline", "control")
    groups = [[_row(table, row) for row in table.of_role(role)] for role in roles]
    dashes = [escaped(DASH)] * (len(table.averages) + 1)
    rates = [DASH if c.majority is None else hundredths(c.majority) for c in table.columns]
    majority = [["majority class", *map(escaped, rates), *dashes]] if table.has_majority else []
    spread = ", mean ± sample standard deviation over seeds" if table.has_spread else ""
    about = f"{title}. Test metric × 100{spread}; bold: highest mean of the methods in a column."
    caption = " ".join(map(escaped, (about, *table.notes)))
    body = tabular("l" + "r" * (len(columns) + 1), [head, *groups, majority])
    return floating(body, caption, "results")


def _row(table: ResultsTable, row: Row) -> list[str]:
    printed = (_MARKED[p.mark].format(escaped(p.text)) for p in table.printed(row))
    return [escaped(row.label), *printed, str(row.n_seeds)]
