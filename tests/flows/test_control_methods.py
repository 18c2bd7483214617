"""Bag of words and length are baselines, unless the task or the experiment says that they are controls."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.control_methods import BagOfWordsMethod, LengthMethod
from flows.dag import build_dag
from flows.experiment import Experiment
from stages.controls import BagOfWordsControl, LengthControl
from stages.corpus.dilution import DilutionCorpus
from stages.corpus.files import FilesCorpus
from tests.flows.conftest import tiny_experiment

MADE = DilutionCorpus(ratio=0.5)
FOUND = FilesCorpus.model_validate(
    {"files": {"train": "x.csv"}, "task": {"kind": "classification", "text": "t", "label": "l"}}
)


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
    assert words.config == BagOfWordsControl(c=(0.5,), metric="mcc")
    assert LengthMethod(role="baseline").config == LengthControl()
    with pytest.raises(ValidationError, match="by_task"):
        LengthMethod.model_validate({"role": "yes"})


def test_another_role_is_another_report_of_the_same_results(tiny_bert: Path, tmp_path: Path):
    content = tiny_experiment(tiny_bert)
    before, after = (
        build_dag(Experiment.model_validate(content | {"methods": methods}), tmp_path)
        for words in ({}, {"role": "baseline"})
        for methods in [content["methods"] | {"words": {"kind": "bag_of_words", **words}}]
    )
    assert after.report_node.spec.ref != before.report_node.spec.ref
    assert [n.spec for n in after.result_nodes.values()] == [
        n.spec for n in before.result_nodes.values()
    ]
