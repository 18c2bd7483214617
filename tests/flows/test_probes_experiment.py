"""An experiment of probes: curves in the report, reuse, and no backbone after the extraction."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.stages.extraction import backbone as loading
from permafrost.stages.probes.geometry import geometry
from permafrost.storage.errors import InputError
from permafrost.storage.ragged import Ragged
from tests.flows.experiments import pairs, run_in, write
from tests.flows.looked import look
from tests.stages.extraction.tiny_models import save_model

pytestmark = pytest.mark.deep

TAU = [-1.1, 0.5, 1.0]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("probes")
    found = {s: str(pairs(folder / f"{s}.parquet", 30, i)) for i, s in enumerate(("dev", "test"))}
    return {**found, "gpt2": str(save_model("gpt2", folder / "gpt2"))}


def experiment(files: dict[str, str]) -> dict[str, Any]:
    source = {
        "kind": "files",
        "files": {"dev": files["dev"], "test": files["test"]},
        "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
    }
    dilution = {"n_words": 20, "gap": 1, "n_train": 24, "n_dev": 12, "n_test": 12}
    return {
        "name": "probes",
        "backbone": {"source": files["gpt2"]},
        "tasks": {
            "pairs": source,
            "30 words": {"kind": "concatenated", "source": source, "n_words": 30},
            "dilution": {"kind": "dilution", "ratio": 0.2, **dilution},
        },
        "methods": {"mean": {"kind": "embed"}},
        "probes": {
            "similarity": {"tasks": ["pairs"], "methods": {"states": {"method": "hs"}}},
            "task scores": {
                "kind": "task_score",
                "tasks": ["dilution", "pairs"],
                "methods": {"means": {}, "values": {"what": "values", "layers": "1-2"}},
            },
            "geometry": {
                "kind": "geometry",
                "tasks": ["pairs"],
                "methods": {"texts": {"at": "last"}, "tokens": {"at": "tokens", "layers": "2"}},
            },
            "graph": {
                "kind": "token_graph",
                "tasks": ["dilution"],
                "methods": {"layer 1": {"layer": "hidden/1", "tau": TAU}},
            },
        },
        "report": {
            "title": "Probes",
            "x_axis": {"kind": "curve", "label": "words", "values": {"pairs": 6, "30 words": 30}},
        },
    }


@pytest.fixture(scope="module")
def first_run(
    files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, PipelineResult]:
    return run_in(tmp_path_factory.mktemp("run"), experiment(files))


@pytest.mark.deep
def test_every_probe_is_a_stage_with_a_table_and_a_figure(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    assert result.computed == {
        "corpus": 3,
        "extract": 3,
        "embed": 2,
        "probe": 8,
        "score": 2,
        "report": 1,
    }
    n_layers = look(path, home).sizes.n_layers
    rows = pq.read_table(result.report.with_name("probes.parquet")).to_pylist()
    at: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        at.setdefault((row["probe"], row["method"], row["task"]), set()).add(row["at"])
    layers = {*map(str, range(n_layers + 1)), "final"}
    assert at == {
        ("task scores", "means", "dilution"): layers,
        ("task scores", "means", "pairs"): layers,
        ("task scores", "values", "dilution"): {"1", "2"},
        ("task scores", "values", "pairs"): {"1", "2"},
        ("geometry", "texts", "pairs"): layers,
        ("geometry", "tokens", "pairs"): {"2"},
        ("graph", "layer 1", "dilution"): {"-1.1", "0.5", "1"},
    }
    figures = {p.stem for p in (result.report.parent / "figures").glob("probe_*.png")}
    assert figures == {
        "probe_1_task_score",
        "probe_2_geometry",
        "probe_3_token_graph",
    }
    curves = pq.read_table(result.report.with_name("layer_curves.parquet")).to_pylist()
    assert {c["task"] for c in curves} == {"pairs · Spearman"}
    page = result.report.read_text(encoding="utf-8")
    assert all(f"<h3>{name}</h3>" in page for name in ("task scores", "geometry", "graph"))


def test_geometry_is_that_of_the_stored_rows(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    dag = look(path, home)
    (features,) = dag.members("default", "pairs")
    _, rows = next(features.reader("hidden/2", "span").in_order(features.n_texts))
    expected = geometry([Ragged(rows.data, rows.offsets)])
    _, last = next(features.reader("pooled/hidden_last/2", "all").in_order(features.n_texts))
    unit = last.data.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    n = len(unit)
    found = {
        (r["method"], r["measure"]): r["value"]
        for r in pq.read_table(result.report.with_name("probes.parquet")).to_pylist()
        if r["probe"] == "geometry" and r["at"] == "2"
    }
    assert found["tokens", "participation ratio"] == pytest.approx(expected.participation_ratio)
    assert found["tokens", "mean cosine"] == pytest.approx(expected.mean_cosine)
    cosines = (unit @ unit.T)[~np.eye(n, dtype=bool)]
    assert found["texts", "mean cosine"] == pytest.approx(cosines.mean(), abs=1e-9)


def test_what_was_chosen_is_in_the_manifest(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    dag = look(path, home)
    rows = pq.read_table(result.report.with_name("probes.parquet")).to_pylist()
    chosen = {
        (r["method"], r["task"]): r["at"] for r in rows if r["chosen"] and r["axis"] == "layer"
    }
    for method in ("means", "values"):
        ref = dag.nodes.probes["task scores", method, "dilution"].spec.ref
        summary = dag.artifacts.manifest(ref).summary
        assert summary["layer"] == chosen[method, "dilution"]
        assert 0 <= summary["test accuracy"] <= 1
        curve = {
            r["at"]: r["value"]
            for r in rows
            if (r["method"], r["task"], r["measure"]) == (method, "dilution", "dev accuracy")
        }
        assert curve[summary["layer"]] == max(curve.values())


def test_a_second_run_reuses_and_a_change_runs_one_curve_without_the_backbone(
    first_run: tuple[Path, Path, PipelineResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, home, _ = first_run

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the backbone was loaded")

    monkeypatch.setattr(loading, "_load_model", refuse)
    assert not run_serially(path, home).computed
    change = ["probes.task scores.methods.means.c=[0.1, 1.0]"]
    assert run_serially(path, home, change).computed == {"probe": 2, "report": 1}
    change = ["probes.graph.methods.layer 1.tau=[0.4]"]
    assert run_serially(path, home, change).computed == {"probe": 1, "report": 1}


def test_names_in_the_report_are_part_of_its_key(files: dict[str, str], tmp_path: Path) -> None:
    content = experiment(files)
    recorded = {"tasks": ["pairs"], "kind": "geometry"}
    content["probes"]["geometry"] = {**recorded, "methods": {"a": {}, "b": {"layers": "2"}}}

    def report(name: str) -> str:
        path = write(tmp_path / f"{name}.yaml", content)
        return str(look(path, tmp_path / "home").nodes.report.ref)

    first = report("first")
    assert report("again") == first
    # The same curves under each other's names: every probe is reused, the page is another.
    content["probes"]["geometry"]["methods"] = {"a": {"layers": "2"}, "b": {}}
    swapped = report("swapped")
    content["probes"]["other"] = content["probes"].pop("geometry")
    renamed = report("renamed")
    texts = content["tasks"]
    content["tasks"] = {"dilution": texts["dilution"], **texts}
    assert len({first, swapped, renamed, report("reordered")}) == 4


def test_a_probe_without_a_kind_is_of_the_first_kind(files: dict[str, str], tmp_path: Path) -> None:
    content = experiment(files)
    dag = look(write(tmp_path / "a.yaml", content), tmp_path / "home")
    content["probes"]["similarity"]["kind"] = "layers"
    named = look(write(tmp_path / "b.yaml", content), tmp_path / "home")
    key = ("similarity", "states", "pairs")
    assert dag.nodes.probes[key].spec == named.nodes.probes[key].spec
    method = {"kind": "hs", "first_token": "include"}
    config = {"kind": "layers", "method": method, "of": "hidden", "layers": "all"}
    assert dag.nodes.probes[key].spec.config == config
    assert dag.nodes.probes["graph", "layer 1", "dilution"].spec.config["kind"] == "token_graph"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "probes.task scores.tasks=[halves]",
            "probes.task scores is of kind task_score and names the task 'halves' of kind unlabelled",
        ),
        ("probes.similarity.tasks=[dilution]", "made for similarity, unlabelled"),
        ("probes.geometry.tasks=[other]", "probes.geometry names the task 'other'"),
        ("probes.geometry.recipe=two", "probes of tokens or geometry cannot read"),
        ("probes.graph.recipe=other", "probes.graph reads the recipe 'other'"),
        ("probes.geometry.methods.texts.layers='9'", "hidden=9"),
        ("probes.graph.methods.layer 1.layer=pooled/hidden_mean/1", "has no state per token"),
        ("probes.graph.kind=graph", "probes.graph.kind is 'graph', which is unknown"),
        ("probes.geometry.methods.texts.n_text=3", "n_text"),
    ],
)
def test_wrong_probes_say_what_is_wrong(
    files: dict[str, str], tmp_path: Path, change: str, says: str
) -> None:
    content = experiment(files)
    content["recipes"] = {"two": "meta_eol"}
    content["tasks"]["halves"] = {
        "kind": "files",
        "files": {"all": files["test"]},
        "task": {"kind": "unlabelled", "text": "a"},
    }
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError) as caught:
        look(path, tmp_path / "home", [change])
    assert says in str(caught.value)
