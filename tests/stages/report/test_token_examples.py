import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.metrics.records import CHOSEN_WEIGHTS
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.token_examples import chosen_examples, token_examples
from permafrost.stages.report.tokens import read_tokens, read_weights
from permafrost.stages.report.weighed_text import MAX_TOKENS, N_OPEN, Piece
from permafrost.storage.errors import CorruptDataError, InputError
from tests.stages.report.fake_results import Grid
from tests.stages.report.test_report import Page

pytestmark = pytest.mark.deep


def examples_of(grid: Grid, n: int = 4):
    weights = read_weights(read_results(grid.cells))
    return token_examples(weights, read_tokens(weights, grid.text_tokens), grid.corpora, n)


def test_examples_take_the_tasks_in_turn_and_alternate_labels(grid: Grid):
    examples = examples_of(grid)
    assert [e.task for e in examples] == ["ratio 0.2", "ratio 0.8", "ratio 0.2", "ratio 0.8"]
    assert [e.label for e in examples] == ["absent", "present", "absent", "present"]


def test_an_example_shows_every_weighted_method_on_the_same_tokens(grid: Grid):
    (example,) = examples_of(grid, 1)
    assert [row.method for row in example.rows] == ["mean", "scorer", "glot"]
    assert len({tuple(p.text for p in row.passages[0].pieces) for row in example.rows}) == 1
    assert example.rows[0].passages[0].is_uniform
    assert not example.rows[2].passages[0].is_uniform
    assert [(row.prediction, row.correct) for row in example.rows] == [("present", False)] * 3


def test_ratios_are_weights_times_the_number_of_tokens(grid: Grid):
    (example,) = examples_of(grid, 1)
    glot = next(c for c in grid.cells if c.method == "glot")
    weights = pq.read_table(glot.folder / "token_weights.parquet").column("weights").to_pylist()[0]
    expected = np.asarray(weights) * len(weights)
    (passage,) = example.rows[2].passages
    assert [p.ratio for p in passage.pieces] == pytest.approx(expected.tolist())
    heaviest = passage.heaviest
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
        [p.ratio for p in example.rows[0].passages[0].pieces]
        == pytest.approx([w * len(row["weights"]) for w in row["weights"]])
        for row in weights
    )


def test_a_long_text_is_folded_and_cut_and_says_what_the_rest_holds(make_grid):
    grid = make_grid(methods=["mean"], controls=[], n_words=MAX_TOKENS + 44)
    (example,) = examples_of(grid, 1)
    ((passage,),) = [row.passages for row in example.rows]
    assert example.n_tokens == (MAX_TOKENS + 47,)
    assert (len(passage.shown), len(passage.folded)) == (N_OPEN, MAX_TOKENS - N_OPEN)
    assert passage.n_cut == 47
    assert passage.cut_share == pytest.approx(47 / passage.n_tokens)
    assert passage.hidden_share == pytest.approx(1 - N_OPEN / passage.n_tokens)


def test_a_text_that_is_little_too_long_is_shown_whole(make_grid):
    grid = make_grid(methods=["mean"], controls=[], n_words=N_OPEN + 20)
    (example,) = examples_of(grid, 1)
    ((passage,),) = [row.passages for row in example.rows]
    assert len(passage.shown) == N_OPEN + 23 == example.n_tokens[0]
    assert passage.folded == ()


def test_texts_whose_tokens_are_not_known_are_passed_over(grid: Grid):
    first, *others = grid.tokens
    grid.tokens = {digest: grid.tokens[digest] for digest in others}
    assert examples_of(grid), "the others are shown"
    grid.tokens = {first: ["[CLS]"]}
    assert examples_of(grid) == ()


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
    weights = read_weights(results)
    with pytest.raises(InputError, match=r"task 'ratio 0\.2' but only texts of \[\]"):
        token_examples(weights, read_tokens(weights, grid.text_tokens), {}, 1)
    path = grid.cells[0].folder / "token_weights.parquet"
    pq.write_table(pa.table({"text": [1]}), path)
    with pytest.raises(CorruptDataError, match="cannot be read with the columns"):
        examples_of(grid)


# Pairs


def pairs_of(grid: Grid, task: str, labels: list[float], predictions: list[float]) -> Grid:
    """The grid's methods on the pairs (8, 9), (10, 11) and so on of their texts."""
    for cell in grid.cells:
        weights = pq.read_table(cell.folder / "token_weights.parquet")
        first = weights["text"].to_pylist()[0::2][: len(labels)]
        second = weights["text"].to_pylist()[1::2][: len(labels)]
        table = {
            "split": ["test"] * len(labels),
            "text": first,
            "text_b": second,
            "label": labels,
            "prediction": predictions,
            "score": [None] * len(labels),
        }
        pq.write_table(pa.table(table), cell.folder / "predictions.parquet")
    names = ("other", "same") if task == "pair_classification" else ()
    grid.corpora = {
        name: replace(corpus, task=task, label_names=names) for name, corpus in grid.corpora.items()
    }
    return grid


@pytest.mark.parametrize(
    ("task", "label", "prediction", "says"),
    [
        ("pair_classification", 1.0, 0.0, ("same", "other", False)),
        ("similarity", 3.8, 0.8712, ("3.8", "cosine 0.871", None)),
        ("unlabelled", 1.0, 3.0, (None, "partner at rank 3", None)),
    ],
)
def test_both_texts_of_a_pair_are_shown_with_label_and_answer(
    make_grid, task: str, label: float, prediction: float, says: tuple[object, ...]
):
    grid = make_grid(tasks=["t"], controls=[], seeds=[0])
    (example,) = examples_of(pairs_of(grid, task, [label], [prediction]), 1)
    assert (example.label, example.rows[0].prediction, example.rows[0].correct) == says
    for cell, row in zip(grid.cells, example.rows, strict=True):
        stored = pq.read_table(cell.folder / "token_weights.parquet").to_pylist()[:2]
        assert [p.n_tokens for p in row.passages] == list(example.n_tokens)
        for passage, of_text in zip(row.passages, stored, strict=True):
            expected = np.asarray(of_text["weights"]) * len(of_text["weights"])
            assert [p.ratio for p in passage.pieces] == pytest.approx(expected.tolist())
            assert [p.text for p in passage.pieces][:2] == ["[CLS]", f"t-{of_text['text']}"]


def test_grades_above_and_below_the_middle_take_turns(make_grid):
    grid = make_grid(tasks=["t"], methods=["glot"], controls=[], seeds=[0])
    path = grid.cells[0].folder / "token_weights.parquet"
    rows = pq.read_table(path).to_pylist()
    digests = [row["digest"] for row in rows]
    more = [{**rows[i % 4], "text": 20 + i, "digest": digests[i % 4]} for i in range(8)]
    pq.write_table(pa.Table.from_pylist(more), path)
    grades = [0.5, 1.2, 4.9, 4.1]
    examples = examples_of(pairs_of(grid, "similarity", grades, [0.1, 0.2, 0.9, 0.8]), 4)
    assert [e.label for e in examples] == ["0.5", "4.9", "1.2", "4.1"]


def test_a_pair_with_weights_of_one_text_only_is_passed_over(make_grid):
    grid = pairs_of(make_grid(tasks=["t"], controls=[], seeds=[0]), "similarity", [1.5], [0.5])
    path = grid.cells[0].folder / "token_weights.parquet"
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    assert examples_of(grid) == ()


def test_the_page_shows_pairs_and_folds_long_texts(make_grid, tmp_path: Path):
    grid = make_grid(tasks=["t"], methods=["glot"], controls=[], seeds=[0], n_words=600)
    grid.config = grid.config.model_copy(update={"n_examples": 1})
    pairs_of(grid, "similarity", [3.8, 1.5], [0.8712, 0.5])
    page = Page(grid.write(tmp_path / "report") / "report.html")
    section = page.source[page.source.index('id="tokens"') : page.source.index("Over all texts")]
    assert section.count('<span class="side">') == 2
    assert "label <strong>3.8</strong> · 603 and 603 tokens" in section
    assert "predicts cosine 0.871" in section
    assert "wrong" not in section
    stored = pq.read_table(grid.cells[0].folder / "token_weights.parquet").to_pylist()[:2]
    for of_text in stored:
        hidden, cut = (sum(of_text["weights"][k:]) for k in (N_OPEN, MAX_TOKENS))
        assert f"<summary>{603 - N_OPEN} more tokens, with {hidden:.0%} of the weight" in section
        assert f"… 91 more tokens not shown, with {cut:.0%} of the weight" in section
    details = section.split("<details")[2].split("</details>")[0]
    assert details.count('<span class="t w') == MAX_TOKENS - N_OPEN


def test_the_shares_of_kinds_are_on_the_page(make_grid, tmp_path: Path):
    grid = make_grid(tasks=["t"], methods=["glot"], controls=[], seeds=[0, 1])
    folder = grid.write(tmp_path / "report")
    rows = pq.read_table(folder / "token_summary.parquet").to_pylist()
    assert [(row["method"], row["seed"], row["n_texts"]) for row in rows] == [
        ("glot", 0, 4),
        ("glot", 1, 4),
    ]
    shown = [row for row in Page(folder / "report.html").rows if row[0] == "glot"]
    means = {
        name: np.mean([row[name] for row in rows])
        for name in rows[0]
        if name not in ("method", "task")
    }
    assert [
        f"{means['effective_tokens']:.1f}",
        f"{means['entropy']:.2f}",
        *(f"{100 * means[f'weight_{k}']:.1f}" for k in ("special", "punctuation", "word")),
        f"{100 * means['weight_continuation']:.1f}",
        f"{100 * means['position_1']:.1f}",
        f"{100 * means['position_10']:.1f}",
        "2",
    ] in [row[1:] for row in shown]


def with_chosen(grid: Grid) -> Grid:
    """Every method has weights on two more texts, of no task of the grid."""
    texts = {"d0": ["[CLS]", "a", "person", "rides"], "d1": ["[CLS]", "a", "horse"]}
    grid.tokens |= texts
    grid.config = grid.config.model_copy(update={"weights_of": "sentences"})
    for cell in grid.cells:
        if cell.role == "method":
            weights = [
                np.full(n, 1 / n)
                if cell.method == "mean"
                else np.arange(1, n + 1) / (n * (n + 1) / 2)
                for n in (4, 3)
            ]
            columns = {"text": [0, 1], "digest": [*texts], "weights": [w.tolist() for w in weights]}
            pq.write_table(pa.table(columns), cell.folder / "chosen_weights.parquet")
    return grid


def test_chosen_texts_stand_before_those_of_test_with_the_heaviest_tokens_framed(
    make_grid, tmp_path: Path
):
    grid = with_chosen(make_grid(tasks=["t"], methods=["mean", "scorer"]))
    page = Page(grid.write(tmp_path) / "report.html")
    labels = [a["aria-label"] for a in page.all("article") if "aria-label" in a]
    assert labels[:3] == ["Chosen text 1", "Chosen text 2", "Example 1"]
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    first = html.split("Chosen text 1")[1].split("</article>")[0]
    assert "sentences, by heads trained on t" in first
    uniform, scorer = first.split("<strong>scorer</strong>")
    assert " top" not in uniform, "no token of a mean is heavier than others"
    assert re.findall(r'class="t w\d( top)?" [^>]*>([^<]+)<', scorer) == [
        *[("", "[CLS]"), (" top", "a"), (" top", "person"), (" top", "rides")]
    ]
    assert "heaviest: rides 40%, person 30%, a 20%" in scorer
    assert "predicts" not in first
    for name in ("chosen_weights_1.png", "chosen_weights_2.png", "token_weights.png"):
        assert (tmp_path / "figures" / name).exists()


def test_chosen_texts_are_shown_by_task_that_was_trained_on_and_not_summarised(make_grid):
    grid = with_chosen(make_grid(tasks=["t", "u"], methods=["scorer"], controls=[]))
    results = read_results(grid.cells)
    weights = read_weights(results, CHOSEN_WEIGHTS)
    found = chosen_examples("sentences", weights, read_tokens(weights, grid.text_tokens))
    assert [e.task for e in found] == [
        f"sentences, by heads trained on {task}" for task in ("t", "u") for _ in range(2)
    ]
    assert {row.method for e in found for row in e.rows} == {"scorer"}
    assert not {0, 1} & {text for cell in read_weights(results) for text in cell.texts}
