"""Triples that a description has no room for are counted, before and after the run."""

from pathlib import Path

import pytest

import permafrost
from permafrost.storage.artifacts import ArtifactStore
from tests.flows.experiments import run_in
from tests.stages.graphs import small_tables


@pytest.mark.parametrize("max_length", [8, 60])
def test_a_plan_and_the_report_tell_how_many(
    tiny_bert: Path, tmp_path: Path, max_length: int
) -> None:
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 1}
    fields = {
        "name": "rooms",
        "backbone": {"source": str(tiny_bert), "max_length": max_length},
        "tasks": {"rooms": {**small_tables.write(tmp_path), "task": "classification"}},
        "methods": {
            "GT2VEC": {
                "kind": "graph_text",
                "model": {"kind": "gt2vec", "encoder": {"kind": "gcn", "hidden": 8}},
                "optim": optim,
            }
        },
        "seeds": [0],
        "runtime": {"extract": {"device": "cpu"}},
    }
    plan = permafrost.plan(fields, home=tmp_path / "home")
    _, home, result = run_in(tmp_path, fields)
    (counts,) = (
        m.summary
        for m in ArtifactStore(home).all()
        if m.summary.get("task") == "rooms descriptions"
    )
    said = (
        "Triples of graphs for which `max_length` leaves no room beside the text: rooms descriptions "
        f"{counts['n_triples_left_out']} of {counts['n_triples']}."
    )
    told = max_length == 8
    assert (counts["n_triples_left_out"] > 0) == told
    assert (said in plan.notes, said in result.notes()) == (told, told)
    assert (said.rpartition(": ")[2] in result.report.read_text()) == told
