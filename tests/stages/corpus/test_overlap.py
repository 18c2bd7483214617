"""Which test examples share a text with train, and what scorers make of it."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from permafrost.stages.corpus.corpus import EXAMPLES, WITH_NEGATIVES, Corpus
from permafrost.stages.corpus.overlap import overlap_metrics, overlap_of_cases
from permafrost.stages.fit.metrics import Metric, evaluate, evaluate_part
from permafrost.stages.scoring.constant import ConstantConfig, run_constant
from permafrost.stages.scoring.controls import LengthControl, run_control
from permafrost.stages.scoring.similarity import SimilarityConfig, score_pairs
from permafrost.storage.keys import text_digest

ALONE = {"test_in_dev": None, "dev_in_train": None}
"""Where there is no dev."""
NOTHING = {"overlap": None, "n_clean_test": None, "clean_test": None}


def examples(train: list[tuple[int, int | None]], negatives: list[list[int]] | None = None):
    """The examples of train."""
    columns = {
        "split": ["train"] * len(train),
        "text": [a for a, _ in train],
        "text_pair": [b for _, b in train],
        "label": [0.0] * len(train),
    }
    schema = EXAMPLES if negatives is None else WITH_NEGATIVES
    return pa.table(columns | ({} if negatives is None else {"negatives": negatives}), schema)


def measured(clean: np.ndarray) -> float:
    """A score that says which examples it is of."""
    return float(np.flatnonzero(clean).sum())


def test_a_text_on_either_side_of_either_split_counts() -> None:
    sides = [np.array([0, 1, 2, 3, 9]), np.array([10, 11, 0, 13, 19])]
    found = overlap_metrics(examples([(0, 13), (5, 6)]), sides, measured)
    # Test pairs 0 and 2 have text 0, pair 3 has text 13.
    assert found == {"overlap": 3 / 5, "n_clean_test": 2, "clean_test": 1 + 4} | ALONE


def test_hard_negatives_of_train_are_texts_that_it_has() -> None:
    sides = [np.array([0, 1, 2]), np.array([10, 11, 12])]
    plain = examples([(7, 8), (5, 6)])
    assert overlap_metrics(plain, sides, measured)["overlap"] == 0
    found = overlap_metrics(examples([(7, 8), (5, 6)], [[11, 4], []]), sides, measured)
    assert found == {"overlap": 1 / 3, "n_clean_test": 2, "clean_test": 0 + 2} | ALONE


def test_single_texts_have_no_second_side() -> None:
    found = overlap_metrics(examples([(0, None)]), [np.array([0, 1, 2])], measured)
    assert found == {"overlap": 1 / 3, "n_clean_test": 2, "clean_test": 1 + 2} | ALONE


def test_without_train_or_without_a_clean_part_there_is_no_score() -> None:
    sides = [np.array([0, 1])]
    only_dev = examples([(0, None)]).set_column(0, EXAMPLES.field("split"), [["dev"]])
    in_dev = {"test_in_dev": 1 / 2, "dev_in_train": None}
    assert overlap_metrics(only_dev, sides, measured) == NOTHING | in_dev
    found = overlap_metrics(examples([(0, None), (1, None)]), sides, measured)
    assert found == {"overlap": 1.0, "n_clean_test": 0, "clean_test": None} | ALONE


def test_dev_that_is_another_split_is_counted_by_whole_examples() -> None:
    """A text that pairs of dev and test share, such as a document of a search, is none of both."""
    pairs = {"train": [(0, 1), (2, 3)], "dev": [(0, 1), (4, 5), (4, 7), (8, 9)]}
    rows = [(split, a, b) for split, of_split in pairs.items() for a, b in of_split]
    names, first, second = zip(*rows, strict=True)
    columns = {"split": names, "text": first, "text_pair": second, "label": [0.0] * len(rows)}
    table = pa.table(columns, EXAMPLES)
    sides = [np.array([4, 4, 5, 8, 6]), np.array([5, 6, 4, 9, 1])]
    found = overlap_metrics(table, sides, measured)
    assert (found["test_in_dev"], found["dev_in_train"]) == (2 / 5, 1 / 4)


def test_cases_of_several_texts_overlap_by_any_of_them_and_are_in_dev_with_all() -> None:
    texts = {
        "train": [[0, 1, 2], [3, 4]],
        "dev": [[2, 1, 0], [5, 6], [7]],
        "test": [[6, 5], [5, 6, 7], [8, 4], [9], [7]],
    }
    cases = {split: [np.array(c) for c in of_split] for split, of_split in texts.items()}
    same = np.arange(10)
    assert overlap_of_cases(cases, same, same, measured) == {
        "overlap": 1 / 5,
        "n_clean_test": 4,
        "clean_test": 0 + 1 + 3 + 4,
        "test_in_dev": 2 / 5,
        "dev_in_train": 1 / 3,
    }
    found = overlap_of_cases(cases | {"train": []}, same, same, measured)
    assert found == NOTHING | {"test_in_dev": 2 / 5, "dev_in_train": None}
    bare = cases | {"train": [np.arange(10)], "dev": []}
    found = overlap_of_cases(bare, same, same, measured)
    assert found == {"overlap": 1.0, "n_clean_test": 0, "clean_test": None} | ALONE


def test_cases_of_equal_texts_with_other_graphs_are_in_no_other_split() -> None:
    """Of a fixed prompt beside graphs: every text is in train, and no case is."""
    cases = {"train": [np.array([0])], "dev": [np.array([1]), np.array([2])]}
    cases["test"] = [np.array([2]), np.array([3])]
    found = overlap_of_cases(cases, np.zeros(4, np.int64), np.arange(4), measured)
    assert found == {
        "overlap": 1.0,
        "n_clean_test": 0,
        "clean_test": None,
        "test_in_dev": 1 / 2,
        "dev_in_train": 0.0,
    }


def graded(test: list[tuple[int, int, float]], train: list[tuple[int, int]]) -> Corpus:
    rows = [("train", a, b, float(i)) for i, (a, b) in enumerate(train)]
    rows += [("test", a, b, g) for a, b, g in test]
    columns = {n: list(c) for n, c in zip(EXAMPLES.names, zip(*rows, strict=True), strict=True)}
    texts = tuple(f"text {i}" for i in range(20))
    table = pa.table(columns, EXAMPLES)
    return Corpus(texts, table, "similarity", (), tuple(map(text_digest, texts)))


def test_cosines_are_also_scored_on_the_clean_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    test = [(i, i + 10, float(i % 4)) for i in range(8)]
    result = score_pairs(
        SimilarityConfig(metric="pearson"), vectors, graded(test, [(0, 19), (9, 12)])
    )
    cosines = result.predictions["prediction"].to_numpy()
    clean = [1, 3, 4, 5, 6, 7]  # the first pair has text 0, the third text 12
    expected = stats.pearsonr(cosines[clean], [test[i][2] for i in clean])[0]
    assert result.metrics["overlap"] == 2 / 8
    assert result.metrics["n_clean_test"] == 6
    assert result.metrics["clean_test"] == pytest.approx(expected, abs=1e-12)
    no_train = score_pairs(SimilarityConfig(), vectors, graded(test, []))
    assert NOTHING.items() <= no_train.metrics.items()


def test_a_clean_part_with_one_label_has_no_correlation() -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    test = [(0, 10, 1.0), (1, 11, 2.0), (2, 12, 2.0)]
    metrics = score_pairs(SimilarityConfig(), vectors, graded(test, [(0, 19)])).metrics
    assert (metrics["n_clean_test"], metrics["clean_test"]) == (2, None)


@pytest.mark.parametrize(
    ("metric", "labels", "is_defined"),
    [
        ("accuracy", [0, 0, 0], True),
        ("mcc", [0, 0, 0], False),
        ("mcc", [1, 1, 1], False),
        ("mcc", [0, 1, 0], True),
        ("f1", [0, 0, 0], False),
        ("f1", [1, 1, 1], True),
        ("spearman_pearson", [2, 2, 2], False),
        ("spearman", [2, 1, 2], True),
        ("mrr", [0, 0, 0], True),
    ],
)
def test_a_part_has_no_score_by_a_metric_that_its_labels_do_not_define(
    metric: Metric, labels: list[int], is_defined: bool
) -> None:
    given, answers = np.array(labels), np.array([1, 0, 1])
    if metric == "mrr":
        answers = np.array([1, 2, 3])
    found = evaluate_part(metric, given, answers)
    assert found == (evaluate(metric, given, answers) if is_defined else None)


@pytest.mark.parametrize("metric", ["accuracy", "mcc"])
def test_controls_have_no_correlation_on_a_clean_part_of_one_class(metric: Metric) -> None:
    texts = tuple("w " * (1 + i) for i in range(8))
    rows = [(s, i, None, float(i % 2)) for s in ("train", "dev") for i in range(4)]
    rows += [("test", i, None, float(i % 2)) for i in (0, 1, 4, 6)]
    columns = {n: list(c) for n, c in zip(EXAMPLES.names, zip(*rows, strict=True), strict=True)}
    digests = tuple(map(text_digest, texts))
    table, names = pa.table(columns, EXAMPLES), ("even", "odd")
    corpus = Corpus(texts, table, "classification", names, digests)
    results = [
        run_control(LengthControl.model_validate({"metric": metric}), corpus),
        run_constant(ConstantConfig(metric=metric), corpus),
    ]
    for found in (result.metrics for result in results):
        assert found["n_clean_test"] == 2
        assert (found["clean_test"] is None) == (metric == "mcc")


def test_controls_tell_it_too() -> None:
    texts = tuple("w " * (1 + i) for i in range(8))
    rows = [(s, i, None, float(i % 2)) for s in ("train", "dev") for i in range(4)]
    rows += [("test", i, None, float(i % 2)) for i in (0, 1, 4, 5, 6)]
    columns = {n: list(c) for n, c in zip(EXAMPLES.names, zip(*rows, strict=True), strict=True)}
    digests = tuple(map(text_digest, texts))
    names = ("even", "odd")
    corpus = Corpus(texts, pa.table(columns, EXAMPLES), "classification", names, digests)
    result = run_control(LengthControl(), corpus)
    tested = [r for r in result.predictions.to_pylist() if r["split"] == "test"][2:]
    assert result.metrics["overlap"] == 2 / 5
    assert result.metrics["n_clean_test"] == 3
    right = [r["label"] == r["prediction"] for r in tested]
    assert result.metrics["clean_test"] == np.mean(right)
    assert result.metrics["class_balance"] == {"even": 3 / 5, "odd": 2 / 5}
