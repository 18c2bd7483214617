"""A task that nothing reads is told of, and how it would be read."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.build import build_graph
from permafrost.flows.checks import check
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.plan import make_plan
from permafrost.flows.unread import unread_notes
from permafrost.storage.errors import InputError
from tests.flows.experiments import graded_task, run_in, write

HEAD = {"kind": "head", "head": {"kind": "scorer"}, "layer": "hidden/2"}
UNLABELLED = {"kind": "unlabelled", "text": "a", "text_pair": "b"}
NOTE = (
    "No method, probe or pretraining reads the task 'CON' (unlabelled), though its texts are extracted: "
    "pretrainings and probes read texts without labels where they name the task, and pairs of them train a "
    "head with loss: {kind: contrastive}."
)
WEIGHTS_NOTE = (
    "report.weights_of names the task 'shown', but no head reads tokens of the experiment's backbone under "
    "its own recipe, so the report shows no token weights of its texts, though they are extracted, as "
    "'capture' asks for those of every task."
)


def experiment(folder: Path, backbone: Path, **methods: Any) -> dict[str, Any]:
    (folder / "con").mkdir()
    con = {**graded_task(folder / "con", 6), "task": UNLABELLED}
    return {
        "name": "unread",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=2@tokens",
        "tasks": {"STS": graded_task(folder, 6), "CON": con},
        "methods": {"GLOT": HEAD, **methods},
        "seeds": [0],
        "report": {"title": "unread"},
        "runtime": {"extract": {"device": "cpu"}},
    }


def test_a_plan_tells_of_a_task_that_no_method_reads(tiny_bert: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "file.yaml", experiment(tmp_path, tiny_bert))
    nodes = build_graph(load_experiment(path))
    planned = make_plan(nodes, check(nodes, tmp_path / "home"))
    assert planned.notes == tuple(planned.as_json()["notes"]) == (NOTE,)
    assert ("default", "CON", 0) in nodes.extractions
    loss = "methods.GLOT.loss={kind: contrastive}"
    (said,) = unread_notes(build_graph(load_experiment(path, [loss])))
    assert said.startswith(
        "No method, probe or pretraining reads the task 'STS' (similarity), though"
    )
    both = ["methods.second={kind: head, head: {kind: scorer}, layer: hidden/2}", loss]
    assert unread_notes(build_graph(load_experiment(path, both))) == ()


def test_a_plan_tells_of_texts_whose_token_weights_no_head_can_show(
    tiny_bert: Path, tmp_path: Path
) -> None:
    document = experiment(tmp_path, tiny_bert)
    document["tasks"]["shown"] = {"kind": "texts", "texts": ["A person rides."]}
    document["methods"]["GLOT"]["tasks"] = ["STS"]
    document |= {"report": {"weights_of": "shown"}, "recipes": {"r": {"kind": "plain"}}}
    del document["tasks"]["CON"]
    path = write(tmp_path / "file.yaml", document)
    assert unread_notes(build_graph(load_experiment(path))) == ()
    pooled = ["capture=hidden=2@mean", "methods.GLOT.layer=pooled/hidden_mean/2"]
    for changed in (pooled, ["methods.GLOT.recipe=r"], ["methods.GLOT={kind: constant}"]):
        nodes = build_graph(load_experiment(path, changed))
        assert not any(node.inputs_named("chosen") for node in nodes.scores.values())
        assert unread_notes(nodes) == (WEIGHTS_NOTE,), changed
        assert nodes.report.config["unread"] == [WEIGHTS_NOTE]
    read = ["report.weights_of=STS", *pooled]
    note, weights_note = unread_notes(build_graph(load_experiment(path, read)))
    assert note.startswith("No method, probe or pretraining reads the task 'shown'")
    assert weights_note.endswith("shows no token weights of its texts.")


def test_a_method_that_names_only_tasks_of_other_kinds_is_refused_by_those(
    tiny_bert: Path, tmp_path: Path
) -> None:
    methods = {"other": {**HEAD, "tasks": ["CON"]}}
    path = write(tmp_path / "file.yaml", experiment(tmp_path, tiny_bert, **methods))
    with pytest.raises(InputError) as refused:
        load_experiment(path)
    assert (
        "methods.other is scored on tasks of kind classification or pair_classification or similarity, and "
        "methods.other.tasks names none but CON (unlabelled); a head takes pairs without labels with loss: "
        "{kind: contrastive}"
    ) in str(refused.value)


@pytest.mark.deep
def test_a_report_tells_of_a_task_that_no_method_reads(tiny_bert: Path, tmp_path: Path) -> None:
    _, _, result = run_in(tmp_path, experiment(tmp_path, tiny_bert))
    assert result.notes()[-1] == NOTE
