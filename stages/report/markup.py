"""Tables in Markdown and LaTeX, in which names and sentences are printed literally."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_INLINE = re.compile(
    r"[\\`*\[\]|~$]"  # code, emphasis, links, cells, strikes, formulas
    r"|<(?=[A-Za-z/!?])"  # a tag; `p < 0.05` stays
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis, not the inside of a word
)
_IN_FRONT = re.compile(r"^(?:[-+](?=[-\s]|$)|#+(?=\s|$)|>|\d+(?=[.)](?:\s|$)))")
"""Beginnings that make a line a heading, a list, a rule or a quotation."""
_CLOSING = re.compile(r"(?<=\s)#+$")
"""A closing sequence of a heading, which is not shown."""
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


@dataclass(frozen=True)
class PlainTable:
    """A table of texts."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_names: int = 2
    """Number of leading columns with names; all others have numbers."""

    def to_markdown(self) -> str:
        """A heading and a pipe table."""
        rule = [":---" if i < self.n_names else "---:" for i in range(len(self.header))]
        body = [[literal(text) for text in row] for row in (self.header, *self.rows)]
        lines = [f"| {' | '.join(row)} |\n" for row in (body[0], rule, *body[1:])]
        return f"## {literal(self.title)}\n\n{''.join(lines)}"

    def to_latex(self, label: str) -> str:
        """A floating booktabs table."""
        head, *body = [[escaped(text) for text in row] for row in (self.header, *self.rows)]
        alignment = "l" * self.n_names + "r" * (len(self.header) - self.n_names)
        return floating(tabular(alignment, [[head], body]), escaped(self.title), label)


def literal(text: str) -> str:
    """Text escaped for a Markdown paragraph, heading or cell of a pipe table, on one line."""
    line = _INLINE.sub(r"\\\g<0>", " ".join(text.split()))
    line = _IN_FRONT.sub(lambda match: _guarded(match[0]), line)
    return _CLOSING.sub(lambda match: f"\\{match[0]}", line)


def _guarded(mark: str) -> str:
    # After a number, the sign behind it makes the list; a digit cannot be escaped.
    return f"{mark}\\" if mark[0].isdigit() else f"\\{mark}"


def escaped(text: str) -> str:
    """Text escaped for LaTeX, on one line.

    A leading `[` or `*` is guarded, as after the end of a row LaTeX would read it as an argument.
    """
    line = "".join(c for c in " ".join(text.split()) if c.isprintable())
    guard = "{}" if line.startswith(("[", "*")) else ""
    return guard + "".join(_SPECIAL.get(c, c) for c in line)


def tabular(alignment: str, groups: Sequence[Sequence[Sequence[str]]]) -> str:
    """A booktabs table of cells that are already LaTeX, with a rule between groups of rows.

    Args:
        alignment: one letter per column.
        groups: the rows of the header, then those of each part.
    """
    parts = ["".join(f"{' & '.join(row)} \\\\\n" for row in group) for group in groups if group]
    body = "\\midrule\n".join(parts)
    return f"\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{body}\\bottomrule\n\\end{{tabular}}\n"


def floating(table: str, caption: str, label: str) -> str:
    """A table environment around a `tabular`; the caption is already LaTeX."""
    return (
        "% needs \\usepackage{booktabs}\n"
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{caption}}}\n\\label{{tab:{label}}}\n{table}\\end{{table}}\n"
    )


def to_markdown(tables: Sequence[PlainTable]) -> str:
    """All tables as one Markdown text."""
    return "\n".join(table.to_markdown() for table in tables)


def to_latex(tables: Sequence[PlainTable]) -> str:
    """All tables as one LaTeX text, with labels `tab:report-1` and so on."""
    return "\n".join(table.to_latex(f"report-{i}") for i, table in enumerate(tables, start=1))
