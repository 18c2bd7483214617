"""What a score of an evaluation depends on is in its key; texts that are stored are not computed again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import run_serially
from permafrost.stages.extraction import computing
from permafrost.stages.mteb_evaluation import LOCAL_TASKS, HubTask
from permafrost.storage.features.store import all_stores
from tests.flows.editing import edit as edit
from tests.flows.experiments import pairs, write
from tests.flows.looked import Looked, look
from tests.flows.small_evaluations import experiment, write_data
from tests.short import short
from tests.stages.extraction.tiny_models import save_model

pytestmark = [
    pytest.mark.deep,
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def other_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape with other weights."""
    from safetensors.torch import load_file, save_file

    found = save_model("bert", tmp_path_factory.mktemp("other"))
    weights = load_file(found / "model.safetensors")
    save_file(
        {n: w * 1.01 for n, w in weights.items()}, found / "model.safetensors", {"format": "pt"}
    )
    return found


def keys(dag: Looked) -> dict[tuple[str, str], str]:
    """Key of every evaluation with seed 0, by method and task."""
    return {(m, t): str(n.spec.ref) for (m, t, s), n in dag.nodes.evaluations.items() if s == 0}


ALL = {(m, t) for m in ("mean", "asked", "VA auto", "head") for t in ("sts", "retrieval")}
OF = {m: {(m, "sts"), (m, "retrieval")} for m in ("mean", "asked", "VA auto", "head")}


@pytest.mark.few(7)
@pytest.mark.parametrize(
    ("change", "touched"),
    [
        ("backbone.max_length=9", ALL),
        ("backbone.source=OTHER", ALL),
        ("store_dtype=float32", ALL),
        ("recipe=plain:specials=exclude", ALL),
        # A prompt of queries is part of searches alone, whichever of its words changes.
        ("recipes.question.template='was {text} ?'", {("asked", "retrieval")}),
        ("methods.asked.prompts={document: question}", {("asked", "retrieval")}),
        ("methods.asked.prompts={}", {("asked", "retrieval")}),
        ("methods.mean.layers='1'", OF["mean"]),
        ("methods.mean.method=last", OF["mean"]),
        ("methods.mean.normalise=l2", OF["mean"]),
        ("methods.head.head.hidden=4", OF["head"]),
        ("methods.head.layer=hidden/1", OF["head"]),
        ("methods.head.normalise=l2", OF["head"]),
        ("evaluations.mteb.tasks.sts.main_score=cosine_pearson", {(m, "sts") for m in OF}),
        ("evaluations.mteb.tasks.retrieval.identical_ids=ignore", {(m, "retrieval") for m in OF}),
        # The task on which layers are chosen and heads are trained.
        ("tasks.pairs.files.dev=OTHER_PAIRS", OF["VA auto"] | OF["head"]),
        ("runtime.workers=1", set()),
        ("runtime.extract.batch_tokens=64", set()),
        ("report.title=Other", set()),
    ],
)
def test_a_key_changes_with_the_embedding_and_the_task_and_nothing_else(
    folder: Path,
    tiny_bert: Path,
    other_bert: Path,
    tmp_path: Path,
    change: str,
    touched: set[tuple[str, str]],
) -> None:
    content = experiment(folder, tiny_bert) | {"capture": "hidden=1-2@tokens"}
    del content["evaluations"]["mteb"]["tasks"]["classification"]
    path = write(tmp_path / "experiment.yaml", content)
    override = change.replace("OTHER_PAIRS", str(pairs(tmp_path / "other.parquet", 24, 9)))
    override = override.replace("OTHER", str(other_bert))
    before, after = (keys(look(path, tmp_path / "home", more)) for more in ([], [override]))
    assert {cell for cell in before if before[cell] != after[cell]} == touched
    assert before.keys() == ALL


TASKS = {**LOCAL_TASKS.kinds(), "mteb": HubTask}


@pytest.fixture(scope="module")
def all_kinds(folder: Path, tiny_bert: Path) -> Path:
    """An evaluation of every kind of task."""
    tasks = {k: {"kind": "local", "type": k, "path": str(folder / k)} for k in LOCAL_TASKS.kinds()}
    content = experiment(folder, tiny_bert) | {"tasks": {}, "capture": None, "recipes": {}}
    content["methods"] = {"mean": content["methods"]["mean"]}
    content["evaluations"] = {"all": {"tasks": tasks | {"mteb": {"kind": "mteb", "name": "STS12"}}}}
    return write(folder / "kinds.yaml", content)


@pytest.mark.parametrize("name", short(TASKS, "retrieval", "mteb"))
def test_an_edit_of_a_kind_of_task_changes_the_keys_of_its_own_nodes(
    all_kinds: Path, edit: Callable[[type], None], name: str
) -> None:
    """Its texts and its score; of what is extracted, only what reads its texts."""
    before = {n.label: n.id for n in build_graph(load_experiment(all_kinds)).graph}
    edit(TASKS[name])
    after = {n.label: n.id for n in build_graph(load_experiment(all_kinds)).graph}
    changed = {label for label in before if before[label] != after[label]}
    nodes = {label for label in before if label.startswith(("corpus", "evaluate"))}
    own = {label for label in nodes if f" {name} ·" in label or label.endswith(f"· {name}")}
    assert changed & nodes == own
    assert len(own) >= 2


def test_a_prompt_that_is_the_recipe_anyway_has_the_key_of_none(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert)
    content["methods"]["asked"]["prompts"] = {"query": "default"}
    path = write(tmp_path / "experiment.yaml", content)
    found = keys(look(path, tmp_path / "home"))
    assert found["asked", "retrieval"] == found["mean", "retrieval"]


@pytest.mark.deep
def test_stored_texts_are_read_and_new_ones_are_added_to_the_same_store(
    folder: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_computed = 0
    forward = computing.forward

    def counted(backbone: Any, encoded: Any, *rest: Any) -> Any:
        nonlocal n_computed
        n_computed += len(encoded)
        return forward(backbone, encoded, *rest)

    monkeypatch.setattr(computing, "forward", counted)
    content = experiment(folder, tiny_bert)
    content["methods"] = {"mean": {"kind": "embed", "layers": "2"}}
    content["tasks"], content["capture"], content["recipes"] = {}, None, {}
    tasks = content["evaluations"]["mteb"]["tasks"]
    content["evaluations"] = {"local": {"tasks": {"sts": tasks["sts"]}}}
    path, home = write(tmp_path / "experiment.yaml", content), tmp_path / "home"
    run_serially(path, home)
    (store,) = all_stores(home)
    first = look(path, home).corpus("sts · text of evaluation")
    assert n_computed == len(first.texts) > 0
    shards = {p: p.read_bytes() for p in (home / "features").rglob("c/*/0") if p.is_file()}
    # Another method on the same layer reads what is there.
    content["methods"]["max"] = {"kind": "embed", "method": "max", "layers": "2"}
    result = run_serially(write(path, content), home)
    assert result.computed == {"evaluate": 1, "report": 1}
    assert n_computed == len(first.texts)
    # Another task adds the texts that are new, in a segment of their own.
    content["evaluations"]["local"]["tasks"]["classification"] = tasks["classification"]
    run_serially(write(path, content), home)
    second = look(path, home).corpus("classification · text of evaluation")
    new = set(second.digests) - set(first.digests)
    assert n_computed == len(first.texts) + len(new)
    (after,) = all_stores(home)
    assert after.store_id == store.store_id
    assert (after.locate([*first.digests, *new]).segment >= 0).all()
    assert shards
    assert all(p.read_bytes() == before for p, before in shards.items())
    assert np.unique(after.locate(sorted(new)).segment).min() > 0
