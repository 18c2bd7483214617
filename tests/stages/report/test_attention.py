"""Stored attention rows in a report: which texts, which blocks, which numbers, and the page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.report.attention import AttentionRows, TextAttention, attention_examples
from permafrost.stages.report.tokens import Token
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import text_digest
from tests.stages.report.fake_results import Grid
from tests.stages.report.test_report import Page

N_HEADS = 3


def stored_rows(grid: Grid, n_blocks: int = 2, without: Sequence[str] = ()) -> AttentionRows:
    """Rows drawn by text and block; softmax, so every head's row sums to 1."""

    def read(digests: Sequence[str], blocks: Sequence[int]) -> dict[str, TextAttention]:
        found: dict[str, TextAttention] = {}
        for digest in digests:
            if digest in without:
                continue
            tokens = [Token(t, is_special=t.startswith("[")) for t in grid.tokens[digest]]
            rng = np.random.default_rng(int(digest[:8], 16))
            rows = {b: rng.dirichlet(np.full(len(tokens), 0.2), N_HEADS).T for b in blocks}
            found[digest] = TextAttention(tokens, rows)
        return found

    return AttentionRows("plain", tuple(range(1, n_blocks + 1)), read)


def test_tasks_take_turns_and_texts_are_spread_over_test(grid: Grid):
    examples = attention_examples(stored_rows(grid), grid.corpora, 5)
    assert [e.task for e in examples] == ["ratio 0.2", "ratio 0.8"] * 2 + ["ratio 0.2"]
    # Test texts are 8 to 11: three of the first task, two of the second.
    first, second = grid.corpora["ratio 0.2"], grid.corpora["ratio 0.8"]
    expected = [first.texts[8], second.texts[8], first.texts[10], second.texts[11], first.texts[11]]
    words = ["".join(p.text for p in e.rows[0].passages[0].pieces) for e in examples]
    for shown, text in zip(words, expected, strict=True):
        assert "".join(text.split()) in shown
    assert [e.label for e in examples] == ["absent", "absent", "absent", "present", "present"]


def test_a_row_is_the_mean_over_heads_in_units_of_an_even_weight(grid: Grid):
    stored = stored_rows(grid)
    (example,) = attention_examples(stored, grid.corpora, 1)
    digest = text_digest(grid.corpora["ratio 0.2"].texts[8])
    found = stored.read([digest], [1, 2])[digest]
    assert [row.method for row in example.rows] == ["block 1", "block 2"]
    for row, block in zip(example.rows, (1, 2), strict=True):
        (passage,) = row.passages
        expected = found.rows[block].sum(axis=1) / N_HEADS * len(found.tokens)
        np.testing.assert_allclose([p.ratio for p in passage.pieces], expected, rtol=1e-12)
        assert passage.n_tokens == len(found.tokens)
        assert (row.prediction, row.correct) == (None, None)


def test_of_many_blocks_six_are_shown_from_the_first_to_the_last(grid: Grid):
    stored = stored_rows(grid, n_blocks=26)
    assert stored.shown == (1, 6, 11, 16, 21, 26)
    (example,) = attention_examples(stored, grid.corpora, 1)
    assert [row.method for row in example.rows] == [f"block {b}" for b in stored.shown]


def test_texts_that_are_not_stored_are_left_out_and_none_may_be_asked_for(grid: Grid):
    gone = text_digest(grid.corpora["ratio 0.2"].texts[8])
    examples = attention_examples(stored_rows(grid, without=[gone]), grid.corpora, 2)
    assert [e.task for e in examples] == ["ratio 0.8"]
    assert attention_examples(stored_rows(grid), grid.corpora, 0) == ()


def test_pairs_show_their_first_texts_without_a_label(grid: Grid):
    corpora = {t: replace(c, task="pair_classification") for t, c in grid.corpora.items()}
    examples = attention_examples(stored_rows(grid), corpora, 2)
    assert [e.label for e in examples] == [None, None]


def test_weights_of_another_length_are_refused(grid: Grid):
    stored = stored_rows(grid)
    digest = text_digest(grid.corpora["ratio 0.2"].texts[8])
    found = stored.read([digest], [1, 2])[digest]
    short = {b: rows[1:] for b, rows in found.rows.items()}
    broken = replace(stored, read=lambda _d, _b: {digest: replace(found, rows=short)})
    with pytest.raises(
        CorruptDataError, match=r"has 16 attention weights at block 1 but 17 tokens"
    ):
        attention_examples(broken, grid.corpora, 1)


def test_the_page_has_a_section_and_a_picture(grid: Grid, tmp_path: Path):
    grid.attention = stored_rows(grid)
    folder = grid.write(tmp_path / "report")
    page = Page(folder / "report.html")
    section = page.source[page.source.index('id="attention"') : page.source.index('id="errors"')]
    assert (
        section.count("<strong>block 1</strong>") == section.count("<strong>block 2</strong>") == 4
    )
    assert "Recipe <code>plain</code>" in section
    assert "says" not in section
    assert (folder / "figures" / "attention_rows.png").exists()
    assert 'href="#attention"' in page.source


@pytest.mark.deep
def test_without_rows_there_is_no_section(written: Path):
    assert 'id="attention"' not in (written / "report.html").read_text()
