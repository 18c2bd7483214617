"""Data of an evaluation that change while they are used are published under no key."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from permafrost.flows.nodes import evaluating, layer_choice
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import ChangedError
from tests.flows.experiments import run_in
from tests.stages.mteb_evaluation.small_tasks import write_task


def experiment(folder: Path, backbone: Path, chosen: bool) -> dict[str, Any]:
    def local(name: str) -> dict[str, Any]:
        return {"kind": "local", "type": "sts", "path": str(folder / name / "sts")}

    by = {"layers": "auto", "layers_by": {"evaluation": "dev"}} if chosen else {"layers": "last"}
    more = {"dev": {"tasks": {"dev": local("dev")}, "methods": []}} if chosen else {}
    return {
        "name": "changing",
        "backbone": {"source": str(backbone)},
        "methods": {"mean": {"kind": "embed", "method": "mean", **by}},
        "evaluations": {**more, "test": {"tasks": {"test": local("test")}}},
        "runtime": {"workers": 1, "extract": {"device": "cpu"}},
    }


def turn_round(folder: Path) -> None:
    """Write a task's scores with their signs turned."""
    (path,) = (folder / "sts").glob("*.parquet")
    table = pq.read_table(path)
    at = table.column_names.index("score")
    pq.write_table(table.set_column(at, "score", pc.negate(table.column("score"))), path)


@pytest.mark.few(1)
@pytest.mark.parametrize("which", ["test", "dev"])
def test_scores_that_change_before_they_are_read_again_are_refused(
    which: str, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("test", "dev"):
        write_task(tmp_path / name, "sts")
    # Layers are chosen on no data that are scored.
    (path,) = (tmp_path / "dev" / "sts").glob("*.parquet")
    pq.write_table(pq.read_table(path).slice(1), path)
    module, function, stage = {
        "test": (evaluating, "evaluate_task", "evaluate"),
        "dev": (layer_choice, "choose_by_tasks", "layers"),
    }[which]
    used = getattr(module, function)

    def meanwhile(*given: object) -> object:
        turn_round(tmp_path / which)
        return used(*given)

    content = experiment(tmp_path, tiny_bert, which == "dev")
    with monkeypatch.context() as patch:
        patch.setattr(module, function, meanwhile)
        with pytest.raises(ChangedError, match=r"changed after they were looked at"):
            run_in(tmp_path, content)
    home = ArtifactStore(tmp_path / "home")
    assert not list(home.all(stage))
    run_in(tmp_path, content)
    assert list(home.all(stage))
