"""Evaluations that make no sense are refused with what is wrong."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import run_serially
from permafrost.storage.errors import InputError
from tests.flows.experiments import write
from tests.flows.looked import look
from tests.flows.small_evaluations import experiment, write_data
from tests.stages.mteb_evaluation.small_tasks import write_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"methods": ["men"]}, r"evaluations.mteb.methods names 'men'; there are mean, asked"),
        ({"fitted_on": "pears"}, "evaluations.mteb.fitted_on is 'pears'; there are pairs"),
        ({"fitted_on": None}, "'VA auto', which chooses its layers on a task; say on which with"),
        ({"tasks": {}}, "evaluations.mteb has neither tasks nor suites"),
        ({"suites": ["beer"]}, "evaluations.mteb.suites.0"),
        (
            {"tasks": {"x": {"kind": "local", "type": "stss", "path": "y"}}},
            "is 'stss', .* nearest is 'sts'",
        ),
        ({"tasks": {"pairs": {"kind": "local", "type": "sts", "path": "y"}}}, "name of a task of"),
        (
            {"tasks": {"x": {"kind": "local", "type": "sts", "path": "nowhere"}}},
            "no file nowhere/test.parquet .nor with .jsonl, .csv, .tsv.; nowhere is not a folder",
        ),
        (
            {"tasks": {"x": {"kind": "mteb", "name": "STS1"}}},
            r"mteb has no task 'STS1' among its \d+; near it are STS",
        ),
    ],
)
def test_wrong_evaluations_say_what_is_wrong(
    folder: Path, tiny_bert: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    content = experiment(folder, tiny_bert)
    content["evaluations"]["mteb"] |= change
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError, match=says):
        look(path, tmp_path / "home").nodes  # noqa: B018


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (
            ("methods", "mean"),
            {"kind": "layers", "head": {"kind": "cosine_mlp"}},
            "whose head 'cosine_mlp' scores pairs of texts and has no vector .* only 'unified' and",
        ),
        (("methods", "asked", "prompts"), {"query": "no"}, "prompts.query reads the recipe 'no'"),
        (("methods", "mean"), {"kind": "length"}, "of kind 'length' and has no vector"),
        (
            ("evaluations", "more"),
            {"tasks": {"sts": {"kind": "local", "type": "sts", "path": "x"}}, "methods": ["mean"]},
            "both have a task 'sts'",
        ),
        (
            ("tasks", "sts · text of evaluation"),
            {"kind": "dilution", "ratio": 0.2},
            "tasks has the name 'sts · text of evaluation', which the texts of .*tasks.sts have",
        ),
    ],
)
def test_methods_that_cannot_be_evaluated_are_refused(
    folder: Path, tiny_bert: Path, tmp_path: Path, where: tuple[str, ...], value: Any, says: str
) -> None:
    content = at = experiment(folder, tiny_bert)
    for name in where[:-1]:
        at = at[name]
    at[where[-1]] = value
    with pytest.raises(InputError, match=says):
        load_experiment(write(tmp_path / "experiment.yaml", content))


def test_an_experiment_needs_something_to_score(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert) | {"tasks": {}, "evaluations": {}}
    with pytest.raises(InputError, match="neither tasks nor evaluations"):
        load_experiment(write(tmp_path / "experiment.yaml", content))


def test_damaged_data_of_a_task_names_the_task(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    write_rows(
        tmp_path / "sts" / "test.parquet", [{"sentence1": "a", "sentence2": "b", "score": 1.0}]
    )
    content = experiment(folder, tiny_bert)
    content["evaluations"]["mteb"]["tasks"]["sts"]["path"] = str(tmp_path / "sts")
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError, match=r"all 1 pairs of .*sts/test.parquet have the grade 1"):
        run_serially(path, tmp_path / "home")


def test_prompts_of_different_numbers_are_not_joined(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert)
    two = ["Topic of {text} :", "Mood of {text} :"]
    content["recipes"]["question"] = {"kind": "meta_eol", "prompts": two}
    content["methods"]["asked"]["combine"] = "concatenate"
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(
        InputError, match=r"methods\.asked joins .*'default' has 1, 'question' has 2"
    ):
        load_experiment(path)
    content["methods"]["asked"]["combine"] = "average"
    load_experiment(write(path, content))
