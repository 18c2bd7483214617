"""One fit with several test sets: trained once, scored on each, and only where train and dev are the same."""

import re
from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.checks import check
from permafrost.flows.pipeline import run_serially
from permafrost.storage.errors import InputError
from tests.flows.experiments import rows_of, run_in, write
from tests.flows.looked import look
from tests.flows.test_pair_heads import entailed

HEAD = {"kind": "head", "layer": "hidden/2", "optim": {"max_epochs": 1, "batch_size": 8}}


def experiment(folder: Path, backbone: Path, **other: str) -> dict[str, Any]:
    """Two tasks that share train and dev, unless `other` says otherwise."""
    files = {
        s: str(entailed(folder / f"{s}.parquet", 24, i)) for i, s in enumerate(("train", "dev"))
    }
    tests = {
        t: str(entailed(folder / f"{t}.parquet", 20, 7 + i)) for i, t in enumerate(("m", "mm"))
    }
    columns = {"text": "a", "text_pair": "b", "label": "label"}
    given = {"m": {**files, "test": tests["m"]}, "mm": {**files, "test": tests["mm"], **other}}
    return {
        "name": "two-test-sets",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=2@tokens",
        "tasks": {
            task: {
                "kind": "files",
                "files": given[task],
                "task": {"kind": "pair_classification", **columns},
            }
            for task in ("mm", "m")
        },
        "test_sets": {"mm": "m"},
        "methods": {
            "mean": {**HEAD, "head": {"kind": "mean"}},
            "chosen": {**HEAD, "head": {"kind": "scorer"}, "grid": {"head.hidden": [2, 4]}},
            "SVM": {"kind": "linear_on_head", "head": "mean", "classifier": "svm"},
            "constant": {"kind": "constant"},
        },
        "seeds": [1],
    }


def test_weights_of_shown_texts_are_kept_once_for_each_fit(tiny_bert: Path, tmp_path: Path) -> None:
    document = experiment(tmp_path, tiny_bert)
    document["tasks"]["shown"] = {"kind": "texts", "texts": ["A person rides."]}
    document["report"] = {"weights_of": "shown"}
    dag = look(write(tmp_path / "experiment.yaml", document), tmp_path / "home")
    scores = {t: dag.nodes.scores["mean", t, 1] for t in ("m", "mm")}
    (shown,) = scores["m"].inputs_named("chosen")
    assert shown.ref == dag.nodes.corpora["shown"].id
    assert scores["mm"].inputs_named("chosen") == ()
    (origin,) = dag.nodes.graph[scores["m"].id].origins
    assert origin.written["report.weights_of"] == "shown"


@pytest.mark.deep
def test_a_head_is_trained_once_and_scored_on_both(tiny_bert: Path, tmp_path: Path) -> None:
    path, home, result = run_in(tmp_path, experiment(tmp_path, tiny_bert))
    dag = look(path, home)
    for method in ("mean", "chosen"):
        fits = {dag.nodes.fits[method, t, 1].id for t in ("m", "mm")}
        assert len(fits) == 1
        (fit,) = fits
        scores = [dag.nodes.scores[method, t, 1] for t in ("m", "mm")]
        assert scores[0].id != scores[1].id
        assert {s.input("head").ref for s in scores} == {fit}
    assert result.computed["fit"] == 3, "one of the mean, two of the grid"
    # What reads a head reads that one fit on either task.
    for task in ("m", "mm"):
        read = dag.nodes.fits["SVM", task, 1].input("head").ref
        assert read == dag.nodes.fits["mean", "m", 1].id
    found = {(r["method"], r["task"]): r for r in rows_of(result)}
    assert len(found) == 8
    assert found["mean", "m"]["dev"] == found["mean", "mm"]["dev"]
    assert found["mean", "mm"]["n_test"] == 20
    # The same as by itself, trained on its own.
    alone = run_serially(path, home, ["test_sets={}"])
    assert alone.computed["fit"] == 3
    own = {(r["method"], r["task"]): r["test"] for r in rows_of(alone)}
    assert own == {name: row["test"] for name, row in found.items()}


def test_other_training_examples_are_refused_before_anything_is_computed(
    tiny_bert: Path, tmp_path: Path
) -> None:
    for split in ("train", "dev"):
        folder = tmp_path / split
        folder.mkdir()
        differs = str(entailed(folder / "other.parquet", 24, 99))
        content = experiment(folder, tiny_bert, **{split: differs})
        dag = look(write(folder / "experiment.yaml", content), folder / "home")
        with pytest.raises(InputError, match=f"has other {split} examples .* than the task"):
            check(dag.nodes, dag.home)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("test_sets={mm: x}", "test_sets.mm names the task 'x'; there are mm, m"),
        ("test_sets={mm: m, m: mm}", "which is itself a further test set"),
        (
            "methods.mean.tasks=[mm]",
            "is scored on 'mm', a further test set of 'm', and not on that",
        ),
        ("metrics={mm: f1}", "metrics has f1 for 'mm' and None for 'm'"),
    ],
)
def test_what_cannot_be_one_fit_is_said(
    tiny_bert: Path, tmp_path: Path, override: str, says: str
) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(tmp_path, tiny_bert))
    with pytest.raises(InputError, match=re.escape(says)):
        look(path, tmp_path / "home", [override])
