"""A constant answer: chosen on train by the metric, scored as scikit-learn and scipy score constants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ConstantInputWarning, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.fit import Metric
from permafrost.stages.metrics.predictions import read_answers
from permafrost.stages.scoring.constant import ConstantConfig, run_constant
from permafrost.storage.errors import InputError
from tests.stages.scoring.test_controls import corpus_of

# Class 0 is the more frequent one in train, class 1 in test.
LABELS = {"train": [0] * 7 + [1] * 5, "dev": [0, 1, 1], "test": [1] * 6 + [0] * 4}


def binary(task: TaskKind = "classification") -> Corpus:
    pair = task == "pair_classification"
    rows = [
        (split, f"{split} {i}", f"and {i}" if pair else None, label)
        for split, labels in LABELS.items()
        for i, label in enumerate(labels)
    ]
    return corpus_of(rows, task=task)


@pytest.mark.parametrize(
    ("metric", "answer", "reference"),
    [
        ("accuracy", 0, accuracy_score),
        ("f1", 1, f1_score),
        ("mcc", 0, matthews_corrcoef),
    ],
)
@pytest.mark.parametrize("task", ["classification", "pair_classification"])
def test_the_answer_is_trains_best_by_the_metric(
    metric: Metric, answer: int, reference: Any, task: TaskKind, tmp_path: Path
) -> None:
    result = run_constant(ConstantConfig(metric=metric), binary(task))
    for split in ("dev", "test"):
        expected = reference(LABELS[split], [answer] * len(LABELS[split]))
        assert result.metrics[split] == pytest.approx(expected)
    assert result.metrics["choice"] == {"answer": ("no", "yes")[answer]}
    assert result.metrics["majority"] == 0.6
    result.save(tmp_path)
    answers = read_answers(tmp_path)
    assert answers is not None
    assert answers.predictions.tolist() == [answer] * 10
    assert answers.scores is not None
    assert answers.scores.tolist() == [5 / 12] * 10, "the share of class 1 in train"


def test_a_constant_has_no_correlation_with_grades() -> None:
    rows: list[Any] = [
        (split, f"{split} {i}", f"and {i}", grade)
        for split, grades in {"train": (1, 2.5), "dev": (0, 4), "test": (1, 3, 5)}.items()
        for i, grade in enumerate(grades)
    ]
    corpus = corpus_of(rows, (), "similarity")
    for metric in ("spearman", "pearson", "spearman_pearson"):
        metrics = run_constant(ConstantConfig(metric=metric), corpus).metrics
        assert (metrics["dev"], metrics["test"]) == (0.0, 0.0)
        assert metrics["choice"] == {"answer": 1.75}
        assert metrics["majority"] is None
    with pytest.warns(ConstantInputWarning):
        undefined: Any = spearmanr([1, 3, 5], [1.75] * 3)
    assert np.isnan(undefined.statistic), "which counts as 0"


def test_three_classes_have_no_f1_and_pairs_without_labels_no_answer() -> None:
    rows: list[Any] = [
        (s, f"{s} {i}", None, i % 3) for s in ("train", "dev", "test") for i in range(4)
    ]
    three = corpus_of(rows, ("a", "b", "c"))
    assert run_constant(ConstantConfig(), three).metrics["test"] == 0.5
    with pytest.raises(InputError, match="f1 is that of class 1 of two, but the corpus has 3"):
        run_constant(ConstantConfig(metric="f1"), three)
    with pytest.raises(InputError, match="metric is 'mrr', which a task of kind 'classification'"):
        run_constant(ConstantConfig(metric="mrr"), three)
    pairs = corpus_of([("train", "a", "b", 1)], (), "unlabelled")
    with pytest.raises(InputError, match="needs classes or grades, but the task is 'unlabelled'"):
        run_constant(ConstantConfig(), pairs)
    short = corpus_of([("train", "a", None, 1), ("test", "b", None, 0)])
    with pytest.raises(InputError, match=r"but the corpus has train, test\. Name a file"):
        run_constant(ConstantConfig(), short)
