"""Controls: they find what lies on the surface, and nothing in the dilution task."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.stages.corpus.sources.dilution import DilutionCorpus
from permafrost.stages.scoring.controls import (
    BagOfWordsControl,
    ClassMetric,
    ControlConfig,
    LengthControl,
    run_control,
)
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest


def corpus_of(
    rows: list[tuple[str, str, str | None, int]],
    names: tuple[str, ...] = ("no", "yes"),
    task: TaskKind = "classification",
) -> Corpus:
    texts = tuple(dict.fromkeys(t for _, a, b, _ in rows for t in (a, b) if t is not None))
    examples = [
        (split, texts.index(a), None if b is None else texts.index(b), float(label))
        for split, a, b, label in rows
    ]
    columns = [
        pa.array(c, f.type) for c, f in zip(zip(*examples, strict=True), EXAMPLES, strict=True)
    ]
    digests = tuple(map(text_digest, texts))
    return Corpus(texts, pa.Table.from_arrays(columns, schema=EXAMPLES), task, names, digests)


def by_word(n: int = 60) -> Corpus:
    """The word tells the class; the length does not."""
    splits = ["train", "dev", "test"]
    return corpus_of(
        [(splits[i % 3], f"{'bad' if i % 2 else 'fit'} {i:03d}", None, i % 2) for i in range(n)]
    )


def by_length(n: int = 60) -> Corpus:
    """The length tells the class; every split has its own words."""
    splits = ["train", "dev", "test"]
    return corpus_of(
        [
            (splits[i % 3], " ".join([f"w{i:03d}"] * (2 + 3 * (i % 2))), None, i % 2)
            for i in range(n)
        ]
    )


def test_words_that_tell_the_class_are_found_by_the_bag_of_words_only() -> None:
    assert run_control(BagOfWordsControl(), by_word()).metrics["test"] == 1.0
    length = run_control(LengthControl(), by_word()).metrics["test"]
    assert isinstance(length, float)
    assert length <= 0.6


def test_the_case_of_words_counts_where_it_is_kept() -> None:
    splits = ["train", "dev", "test"]
    rows = [(splits[i % 3], f"{'ICE' if i % 2 else 'ice'} {i:03d}", None, i % 2) for i in range(60)]
    folded, kept = (
        run_control(BagOfWordsControl(case=case), corpus_of(rows)).metrics["test"]
        for case in ("folded", "kept")
    )
    assert kept == 1.0
    assert isinstance(folded, float)
    assert folded <= 0.6


def test_lengths_that_tell_the_class_are_found_by_the_length_only() -> None:
    assert run_control(LengthControl(), by_length()).metrics["test"] == 1.0
    words = run_control(BagOfWordsControl(), by_length()).metrics["test"]
    assert words == 0.5


@pytest.mark.parametrize("signal", ["single", "tiled"])
@pytest.mark.parametrize("ratio", [0.2, 0.8])
def test_the_dilution_task_leaves_both_controls_at_chance(signal: str, ratio: float) -> None:
    corpus = DilutionCorpus.model_validate(
        {"ratio": ratio, "signal": signal, "n_words": 64, "n_train": 600, "n_test": 1000}
    ).build()
    for control in (LengthControl(), BagOfWordsControl()):
        metrics = run_control(control, corpus).metrics
        assert metrics["majority"] == 0.5
        # 1,000 texts: standard deviation 0.016, so four of them.
        assert metrics["test"] == pytest.approx(0.5, abs=0.064)


def test_the_files_have_the_layout_of_every_scored_method(tmp_path: Path) -> None:
    corpus = by_word()
    run_control(BagOfWordsControl(c=(1.0, 0.5)), corpus).save(tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    # 20 numbers and 2 words in train, and one intercept.
    assert metrics == {
        "metric": "accuracy",
        "dev": 1.0,
        "test": 1.0,
        "n_dev": 20,
        "n_test": 20,
        "majority": 0.5,
        "class_balance": {"no": 0.5, "yes": 0.5},
        "overlap": 0.0,
        "n_clean_test": 20,
        "clean_test": 1.0,
        "test_in_dev": 0.0,
        "dev_in_train": 0.0,
        "choice": {"c": 0.5, "n_features": 22},
        "n_parameters": 23,
        "converged": True,
    }
    table = pq.read_table(tmp_path / "predictions.parquet")
    kinds = {"split": "string", "text": "int64"}
    kinds |= dict.fromkeys(["label", "prediction", "score"], "double")
    kinds |= {"example": "int64", "digest": "string"}
    names = "dictionary<values=string, indices=int32, ordered=0>"
    kinds |= dict.fromkeys(["label_name", "prediction_name"], names)
    kinds |= dict.fromkeys(["probability_no", "probability_yes"], "float")
    assert {f.name: str(f.type) for f in table.schema} == kinds
    assert table.num_rows == 40
    rows = table.to_pylist()
    assert [r["split"] for r in rows] == ["dev"] * 20 + ["test"] * 20
    assert all(r["prediction"] == r["label"] == (r["score"] > 0.5) for r in rows)
    assert [r["text"] for r in rows[:20]] == corpus.split("dev").column("text").to_pylist()


def test_three_classes_have_predictions_but_no_score() -> None:
    rows = [
        (split, f"{'abc'[i % 3]} {split}{i}", None, i % 3)
        for split in ("train", "dev", "test")
        for i in range(9)
    ]
    result = run_control(BagOfWordsControl(), corpus_of(rows, ("a", "b", "c")))
    assert result.metrics["test"] == 1.0
    assert result.metrics["n_parameters"] == 3 * (12 + 1)
    assert result.predictions.column("score").null_count == 18
    assert np.unique(result.predictions.column("prediction").to_numpy()).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("metric", "reference"), [("mcc", matthews_corrcoef), ("f1", f1_score)])
def test_another_metric_is_chosen_and_reported_by(
    metric: ClassMetric, reference: Callable[[np.ndarray, np.ndarray], float]
) -> None:
    splits = ["train", "dev", "test"]
    # Length and class go together in two of three examples.
    corpus = corpus_of(
        [
            (splits[i % 3], "word " * (1 + (i % 7 < 3)) + f"w{i}", None, int(i % 7 < 4))
            for i in range(90)
        ]
    )
    found = run_control(LengthControl(metric=metric, c=(0.01, 1.0)), corpus)
    assert found.metrics["metric"] == metric
    for split in ("dev", "test"):
        rows = found.predictions.filter(pc.field("split") == split)
        label, guess = (rows.column(c).to_numpy() for c in ("label", "prediction"))
        assert found.metrics[split] == pytest.approx(reference(label, guess), abs=1e-12)
        assert 0 < reference(label, guess) < 1


def test_the_majority_rate_is_that_of_the_test_split() -> None:
    rows = [(s, f"{'yn'[i % 2]} {s}{i}", None, i % 2) for s in ("train", "dev") for i in range(8)]
    rows += [("test", f"n t{i}", None, int(i < 3)) for i in range(4)]
    assert run_control(BagOfWordsControl(), corpus_of(rows)).metrics["majority"] == 0.75


def test_pairs_are_told_apart_by_side() -> None:
    # The class is the order of two texts: their words together say nothing.
    rows = [
        (split, *((f"x {i}", f"y {i}") if i % 2 else (f"y {i}", f"x {i}")), i % 2)
        for split in ("train", "dev", "test")
        for i in range(10)
    ]
    result = run_control(BagOfWordsControl(), corpus_of(rows, task="pair_classification"))
    assert result.metrics["test"] == 1.0
    choice = result.metrics["choice"]
    assert isinstance(choice, dict)
    assert choice["n_features"] == 2 * 12


@pytest.mark.parametrize("control", [LengthControl(), BagOfWordsControl()])
def test_tasks_without_classes_are_refused(control: ControlConfig) -> None:
    corpus = corpus_of([("train", "a", "b", 1)], (), "similarity")
    with pytest.raises(InputError, match="needs classes, but the task is 'similarity'"):
        run_control(control, corpus)


def test_a_missing_split_is_refused_with_a_way_out() -> None:
    corpus = corpus_of([("train", "a", None, 1), ("test", "b", None, 0)])
    with pytest.raises(
        InputError, match=r"corpus has train, test\. Name a file or split for dev, or .*from_train"
    ):
        run_control(LengthControl(), corpus)


def test_one_class_in_train_is_refused() -> None:
    corpus = corpus_of([(s, s, None, 1) for s in ("train", "dev", "test")])
    with pytest.raises(InputError, match="all 1 training examples have the class 'yes'"):
        run_control(LengthControl(), corpus)


@pytest.mark.filterwarnings("error")
def test_a_control_says_whether_its_solver_converged(monkeypatch: pytest.MonkeyPatch):
    assert run_control(BagOfWordsControl(), by_word()).metrics["converged"] is True
    monkeypatch.setattr("permafrost.stages.fit.logistic.MAX_ITER", 1)
    assert run_control(BagOfWordsControl(), by_word()).metrics["converged"] is False
