"""Bag of words and length are baselines, unless the task or the experiment says that they are controls."""

from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from permafrost.flows.build import build_graph
from permafrost.flows.experiment import Experiment
from permafrost.flows.methods.cell import Cell, Upstream
from permafrost.flows.methods.method import METHODS
from permafrost.flows.methods.surface import BagOfWordsMethod, LengthMethod
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.corpus.sources.dilution import DilutionCorpus
from permafrost.stages.corpus.sources.files import FilesCorpus
from permafrost.stages.scoring.controls import BagOfWordsControl, LengthControl
from tests.flows.conftest import tiny_experiment

MADE = DilutionCorpus(ratio=0.5)
FOUND = FilesCorpus.model_validate(
    {"files": {"train": "x.csv"}, "task": {"kind": "classification", "text": "t", "label": "l"}}
)
GRADED = FilesCorpus.model_validate({"files": {"train": "x.csv"}, "task": {"kind": "similarity"}})


@pytest.mark.parametrize("kind", [BagOfWordsMethod, LengthMethod])
@pytest.mark.parametrize(
    ("role", "on_made", "on_found"),
    [
        ("by_task", "control", "baseline"),
        ("baseline", "baseline", "baseline"),
        ("control", "control", "control"),
    ],
)
def test_the_task_decides_unless_the_experiment_does(kind, role, on_made, on_found):
    method = kind(role=role)
    assert (method.role_on(MADE), method.role_on(FOUND)) == (on_made, on_found)
    assert kind().role == "by_task"


def test_the_role_is_no_part_of_what_is_computed():
    words = BagOfWordsMethod(role="control", c=(0.5,), metric="mcc")
    on_f1 = Cell("words", "task", 0, MADE, "f1", cast(Upstream, None))
    assert words.control_config(on_f1) == BagOfWordsControl(c=(0.5,), metric="mcc")
    assert LengthMethod(role="baseline").control_config(on_f1) == LengthControl(metric="f1")
    with pytest.raises(ValidationError, match="by_task"):
        LengthMethod.model_validate({"role": "yes"})


HEAD = {"head": {"kind": "scorer"}, "layer": "hidden/1"}
SHUFFLED: dict[str, tuple[dict[str, Any], list[CorpusConfig], list[CorpusConfig | None]]] = {
    "head": ({"kind": "head", **HEAD}, [FOUND, MADE], [GRADED, None]),
    "finetuned": (
        {"kind": "finetuned", "train": "lora", **HEAD},
        [FOUND, MADE],
        [GRADED, None],
    ),
    "linear": ({"kind": "linear"}, [FOUND, MADE], [None]),
    "an MLP on cosines": ({"kind": "layers", "head": {"kind": "cosine_mlp"}}, [], [GRADED, None]),
    "a cosine": ({"kind": "layers", "head": {"kind": "unified"}}, [], [GRADED, None]),
    "graph_text": ({"kind": "graph_text"}, [FOUND], [None]),
}
"""Fields; tasks on which it must be at chance, and those on which it need not; None is an evaluation's."""


@pytest.mark.parametrize("name", SHUFFLED)
def test_shuffled_labels_need_not_be_at_chance_where_vectors_are_compared(name):
    """Cosines agree with grades, and vectors with an evaluation's answers, whatever the labels were."""
    fields, at_chance, elsewhere = SHUFFLED[name]
    method = METHODS.validate(fields | {"labels": "shuffled"})
    assert {method.role_on(task) for task in (*at_chance, *elsewhere)} == {"control"}
    assert all(map(method.must_be_at_chance, at_chance))
    assert not any(map(method.must_be_at_chance, elsewhere))


def test_another_role_is_another_report_of_the_same_results(tiny_bert: Path, tmp_path: Path):
    content = tiny_experiment(tiny_bert)
    before, after = (
        build_graph(Experiment.model_validate(content | {"methods": methods}))
        for words in ({}, {"role": "baseline"})
        for methods in [content["methods"] | {"words": {"kind": "bag_of_words", **words}}]
    )
    assert after.report.ref != before.report.ref
    assert [n.ref for n in after.results.values()] == [n.ref for n in before.results.values()]
