"""Whatever a name holds, Markdown prints it as it is; a renderer of Markdown is the judge."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from permafrost.stages.report.entries import Entry
from permafrost.stages.report.markup import PlainTable, literal, to_markdown
from permafrost.stages.report.results_files import results_markdown
from permafrost.stages.report.tables import Column, ResultsTable, Row

NAMES = [
    "GLOT [k=2]", "a|b", "*x*", "**x**", "<b>", "m[/b]", "`code`", "``", "_x_", "a_b_c", "~~x~~", "![a](b)",
    "[a](b)", "[a][b]", "a\\|b", "\\*", "&lt;b&gt;", "&#42;", "<!-- x -->", "$x^2$", "# x", "x #", "- x", "+",
    "---", "1. x", "1)", "1.5", "> x", "x < y", "a & b", "~~~", "```",
    "https://x", "<https://x.org>", "C:\\dir\\",
]  # fmt: skip
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


class _Page(HTMLParser):
    """The texts of a page by the element that holds them, and all elements."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.tags: set[str] = set()
        self._open: list[str] = []
        self.feed(MARKDOWN.render(markdown))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_literally_in_every_place(name: str) -> None:
    page = _Page(to_markdown([PlainTable(name, (name, "n"), ((name, "1"),), n_names=1)]))
    assert page.tags == {"h2", "table", "thead", "tbody", "tr", "th", "td"}
    assert page.texts["h2"] == [name]
    assert page.texts["th"] == [name, "n"]
    assert page.texts["td"] == [name, "1"]


def test_results_and_their_notes_are_printed_literally() -> None:
    for name in NAMES:
        column = Column(task=name, metric="accuracy", heading=name, majority=None, n_test=2)
        row = Row(name, "method", (Entry(0.5, None, 1),), (0,), (1, 1))
        page = _Page(
            results_markdown(
                ResultsTable((column,), (row,), notes=(name, f"One seed of {name}: x."))
            )
        )
        assert page.texts["th"] == ["method", f"{name} (accuracy)", "seeds"]
        assert page.texts["td"][0] == name
        assert page.texts["p"] == [name, f"One seed of {name}: x."]
        assert page.tags == {"table", "thead", "tbody", "tr", "th", "td", "p", "strong"}


@given(st.text("a1 *_`[]<>!|\\~&;#-+.$=:(){}\"'/", max_size=12))
def test_any_sequence_of_signs_is_printed_literally(text: str) -> None:
    wanted = " ".join(text.split())
    page = _Page(literal(text))
    assert page.texts.get("p", [""]) == [wanted]
    assert page.tags <= {"p"}


def test_what_needs_no_guard_stays_readable() -> None:
    for text in (
        "ratio 0.5",
        "aligned_wva",
        "hidden/2",
        "p < 0.05",
        "a & b",
        "−3.1",
        "84.1 ± 16.9 ≈",
    ):
        assert literal(text) == text
