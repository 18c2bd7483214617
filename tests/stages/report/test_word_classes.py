"""Function words against content words, told by the list, in each tokenizer's notation."""

import numpy as np
import pytest

from permafrost.stages.report.cells import read_results
from permafrost.stages.report.token_summary import (
    summaries,
    summary_table,
    token_weights_table,
    word_classes_table,
)
from permafrost.stages.report.tokens import Token, read_tokens, read_weights, readable
from permafrost.stages.report.word_classes import FUNCTION_WORDS, by_class, classes_of, relative

BERT = [
    "[CLS]",
    "the",
    "genome",
    "##s",
    "that",
    "were",
    "un",
    "##able",
    ",",
    "it",
    "'",
    "s",
    "[SEP]",
]
FUNCTION = {"the", "that", "were", "it", "s"}


def test_a_word_of_several_tokens_is_one_word_and_marks_are_of_no_class():
    read = readable([Token(t, t.startswith("[")) for t in BERT], "wordpiece")
    weights = np.arange(1.0, len(BERT) + 1) / 91
    function, content = by_class(weights, classes_of(read))
    assert function * 91 == pytest.approx(sum(i + 1 for i, t in enumerate(BERT) if t in FUNCTION))
    # genome, ##s, un, ##able
    assert content * 91 == pytest.approx(3 + 4 + 7 + 8)


def test_a_function_word_that_a_word_begins_with_is_part_of_it():
    read = readable([Token(t) for t in ("ĠThe", "Ġin", "put", "Ġof", "Ġ2", "0")], "bytes")
    function, content = by_class(np.full(6, 1 / 6), classes_of(read))
    assert function * 6 == pytest.approx(2)
    assert content * 6 == pytest.approx(4), "input is no preposition, and numbers are content"


def test_the_list_has_single_words_in_lower_case():
    assert all(word == word.lower() and " " not in word for word in FUNCTION_WORDS)
    assert {"the", "of", "whereas", "because", "myself", "n't"} < FUNCTION_WORDS
    assert not {"person", "horse", "maximum", "number", "unique", "human"} & FUNCTION_WORDS


def test_relative_weights_are_one_for_a_mean_and_undefined_without_tokens():
    uniform = np.array([0.4, 0.5])
    assert relative(uniform, uniform).tolist() == [1, 1]
    assert relative(np.array([0.2, 0.7]), uniform).tolist() == pytest.approx([0.5, 1.4])
    without = relative(np.array([0.0, 0.9]), np.array([0.0, 0.9]))
    assert np.isnan(without[0])
    assert without[1] == 1


def test_the_table_has_the_weights_of_both_classes_by_method(make_grid):
    grid = make_grid(tasks=["t"], methods=["mean", "scorer"], controls=[])
    # Every second word of each text is made a function word.
    grid.tokens = {
        d: [t if i % 2 or t.startswith("[") else "the" for i, t in enumerate(tokens)]
        for d, tokens in grid.tokens.items()
    }
    weights = read_weights(read_results(grid.cells))
    (found,) = summaries(summary_table(weights, read_tokens(weights, grid.text_tokens)))
    table = word_classes_table(found)
    by_method = {row[0]: row[1:] for row in table.rows}
    function, content = (100 * share for share in found.classes)
    assert by_method["mean"] == (f"{function:.1f}", f"{content:.1f}", "1.00", "1.00", "1.00")
    (scorer,) = [m for m in found.methods if m.method == "scorer"]
    a, b = scorer.classes / found.classes
    shares = tuple(f"{100 * share:.1f}" for share in scorer.classes)
    assert by_method["scorer"] == (*shares, f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}")
    assert a != pytest.approx(b), "weights that tell nothing apart would test nothing"


def test_texts_without_function_words_have_no_such_table(make_grid):
    grid = make_grid(tasks=["t"], controls=[])
    weights = read_weights(read_results(grid.cells))
    grid.tokens = {d: ["[CLS]", *["zq"] * (len(t) - 1)] for d, t in grid.tokens.items()}
    (found,) = summaries(summary_table(weights, read_tokens(weights, grid.text_tokens)))
    assert word_classes_table(found).rows == ()
    assert token_weights_table(found).rows
