import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.report.cells import read_results
from stages.report.token_weights import MAX_TOKENS, Piece, readable, token_examples
from storage.errors import CorruptDataError, InputError
from tests.stages.report.fake_results import Grid


def examples_of(grid: Grid, n: int = 4):
    return token_examples(read_results(grid.cells), grid.corpora, grid.tokens.get, n)


def test_examples_take_the_tasks_in_turn_and_alternate_labels(grid: Grid):
    examples = examples_of(grid)
    assert [e.task for e in examples] == ["ratio 0.2", "ratio 0.8", "ratio 0.2", "ratio 0.8"]
    assert [e.label for e in examples] == ["absent", "present", "absent", "present"]


def test_an_example_shows_every_weighted_method_on_the_same_tokens(grid: Grid):
    (example,) = examples_of(grid, 1)
    assert [row.method for row in example.rows] == ["mean", "scorer", "glot"]
    assert len({tuple(p.text for p in row.pieces) for row in example.rows}) == 1
    assert example.rows[0].is_uniform
    assert not example.rows[2].is_uniform
    assert [(row.prediction, row.correct) for row in example.rows] == [("present", False)] * 3


def test_ratios_are_weights_times_the_number_of_tokens(grid: Grid):
    (example,) = examples_of(grid, 1)
    glot = next(c for c in grid.cells if c.method == "glot")
    weights = pq.read_table(glot.folder / "token_weights.parquet").column("weights").to_pylist()[0]
    expected = np.asarray(weights) * len(weights)
    assert [p.ratio for p in example.rows[2].pieces] == pytest.approx(expected.tolist())
    heaviest = example.rows[2].heaviest
    assert [share for _, share in heaviest] == sorted(weights, reverse=True)[: len(heaviest)]


def test_levels_double_from_a_quarter_to_sixteen_times_uniform():
    ratios = (0.0, 0.1, 0.25, 0.5, 1.0, 1.3, 2.0, 4.0, 8.0, 16.0, 500.0)
    assert [Piece("x", False, r).level for r in ratios] == [0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 6]


def test_the_smallest_seed_is_shown_whatever_the_order_of_cells(grid: Grid):
    grid.cells.reverse()
    (example,) = examples_of(grid, 1)
    seed_0 = next(c for c in grid.cells if (c.method, c.task, c.seed) == ("glot", example.task, 0))
    weights = pq.read_table(seed_0.folder / "token_weights.parquet").to_pylist()
    assert any(
        [p.ratio for p in example.rows[0].pieces]
        == pytest.approx([w * len(row["weights"]) for w in row["weights"]])
        for row in weights
    )


def test_a_long_text_is_cut_and_says_what_the_rest_holds(make_grid):
    grid = make_grid(methods=["mean"], controls=[], n_words=MAX_TOKENS + 44)
    (example,) = examples_of(grid, 1)
    (row,) = example.rows
    assert len(row.pieces) == MAX_TOKENS
    assert row.n_cut == example.n_tokens - MAX_TOKENS == 47
    assert row.cut_share == pytest.approx(47 / example.n_tokens)


def test_texts_whose_tokens_are_not_known_are_passed_over(grid: Grid):
    results = read_results(grid.cells)
    assert token_examples(results, grid.corpora, lambda digest: None, 4) == ()


def test_more_examples_than_texts_gives_what_there_is(grid: Grid):
    assert len(examples_of(grid, 100)) == 8
    assert examples_of(grid, 0) == ()


def test_weights_that_do_not_fit_the_tokens_are_refused_with_both_counts(grid: Grid):
    for digest in grid.tokens:
        grid.tokens[digest] = ["one", "two"]
    with pytest.raises(CorruptDataError, match="has 17 weights under 'mean' but 2 tokens"):
        examples_of(grid)


def test_a_task_without_corpus_and_a_file_without_column_are_refused(grid: Grid):
    results = read_results(grid.cells)
    with pytest.raises(InputError, match=r"task 'ratio 0\.2' but only texts of \[\]"):
        token_examples(results, {}, grid.tokens.get, 1)
    path = grid.cells[0].folder / "token_weights.parquet"
    pq.write_table(pa.table({"text": [1]}), path)
    with pytest.raises(CorruptDataError, match="cannot be read with the columns"):
        examples_of(grid)


def test_pieces_of_wordpiece_byte_level_and_sentencepiece_tokenizers_read_as_text():
    assert readable(["[CLS]", "thaw", "##ing", "."]) == [
        ("[CLS]", False),
        ("thaw", False),
        ("ing", True),
        (".", False),
    ]
    assert readable(["<s>", "caf", "Ã©", "Ġopen", "Ċ", "âĤ"]) == [
        ("<s>", False),
        ("caf", True),
        ("é", True),
        ("open", False),
        ("↵", True),
        ("�", True),
    ]
    assert readable(["<s>", "▁frozen", "▁gro", "und", "▁"]) == [
        ("<s>", False),
        ("frozen", False),
        ("gro", False),
        ("und", True),
        ("␣", False),
    ]
