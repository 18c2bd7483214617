"""Why something runs, in the words of the YAML: told from recorded manifests alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.graph import Node
from permafrost.flows.origin import WEIGHTS_OF, Origin
from permafrost.storage.artifacts import MANIFEST, ArtifactSpec, ArtifactStore, parse_ref
from permafrost.storage.keys import KEY_VERSION, digest
from permafrost.storage.sealed import sealed_bytes
from tests.flows.recorded import Recorded, place, spec
from tests.storage.small_store import IDENTITY, new_store

CORPORA = [f"corpus/{c * 32}" for c in "ab"]


@pytest.fixture
def home(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def fit(
    lr: float = 0.1, *inputs: str, seed: int = 0, code: dict[str, str] | None = None
) -> ArtifactSpec:
    config = {"head": {"kind": "glot", "hidden": 8}, "optim": {"lr": lr}, "seed": seed}
    return spec("fit", config, *inputs, **(code or {}))


def test_a_field_is_named_as_in_the_yaml(home: Recorded) -> None:
    ref = home.publish(fit(0.0002), place())
    found = home.why(fit(0.002), place())
    assert found.headline == "GLOT: optim.lr 0.0002 -> 0.002"
    assert found.as_json()["nearest"] == ref
    assert found.as_json()["differences"] == [
        {
            "text": "GLOT: optim.lr 0.0002 -> 0.002",
            "path": "optim.lr",
            "old": 0.0002,
            "new": 0.002,
        }
    ]


def test_another_seed_task_or_method_is_never_compared_with(home: Recorded) -> None:
    home.publish(fit(0.1), place())
    for other in (place(seed=2), place(task="SST-2"), place(name="mean")):
        found = home.why(fit(0.2, seed=2), other)
        assert found.nearest is None
        assert found.headline == f"new: no earlier fit of {other}"
    assert home.why(fit(0.2, seed=2), place(seed=2)).headline == (
        "new: no earlier fit of GLOT on CoLA, seed 2"
    )


def test_the_same_experiment_comes_before_fewer_differences(home: Recorded) -> None:
    home.publish(fit(0.1), place(experiment="other"))
    assert home.why(fit(0.2), place()).headline == "GLOT: optim.lr 0.1 -> 0.2"
    home.publish(fit(0.3, code={"a": "1"}), place())
    assert "0.3 -> 0.2" in home.why(fit(0.2), place()).headline


def test_of_equally_near_ones_the_latest_counts(home: Recorded) -> None:
    for lr in (0.1, 0.3):
        home.publish(fit(lr), place())
    assert home.why(fit(0.2), place()).headline == "GLOT: optim.lr 0.3 -> 0.2"


def test_a_published_artifact_is_compared_with_those_before_it(home: Recorded) -> None:
    for lr in (0.1, 0.2, 0.3):
        home.publish(fit(lr), place())
    made = home.artifacts.manifest(fit(0.2).ref)
    found = home.explainer.why(made.spec, (place(),), before=made)
    assert found.headline == "GLOT: optim.lr 0.1 -> 0.2"


def test_two_places_of_one_artifact_are_both_found(home: Recorded) -> None:
    home.publish(fit(0.1), place("mean"), place("average"))
    assert home.why(fit(0.2), place("average")).headline == "average: optim.lr 0.1 -> 0.2"


def test_a_kind_that_changed_hides_fields_of_only_one_kind(home: Recorded) -> None:
    home.publish(fit(), place())
    config = {"head": {"kind": "scorer", "hidden": 16, "depth": 2}, "optim": {"lr": 0.1}}
    found = home.why(spec("fit", {**config, "seed": 0}), place())
    assert found.headline == "GLOT: head.kind glot -> scorer; GLOT: head.hidden 8 -> 16"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({}, {"warmup": 5}, "GLOT: warmup 5 added"),
        ({"warmup": 5}, {}, "GLOT: warmup 5 removed"),
        ({"c": [1, 2]}, {"c": [1, 2, 3]}, "GLOT: c 3 added"),
        ({"c": [1, 2]}, {"c": [2]}, "GLOT: c 1 removed"),
        ({"c": [1, 2]}, {"c": [2, 1]}, "GLOT: c [1, 2] -> [2, 1]"),
        ({"loss": None}, {"loss": True}, "GLOT: loss null -> true"),
        ({"parts": [{"x": 1}]}, {"parts": [{"x": 2}]}, "GLOT: parts[0].x 1 -> 2"),
        (
            {"finetune": {"fit": {"layer": "a"}}},
            {"finetune": {"fit": {"layer": "b"}}},
            "GLOT: layer a -> b",
        ),
        (
            {"vectors": [{"of": "hidden"}]},
            {"vectors": [{"of": "values"}]},
            "GLOT: of hidden -> values",
        ),
        ({"task": {"mteb": "2.1"}}, {"task": {"mteb": "2.2"}}, "mteb 2.1 -> 2.2"),
    ],
)
def test_fields(home: Recorded, old: dict[str, Any], new: dict[str, Any], said: str) -> None:
    home.publish(spec("fit", {"seed": 0, **old}), place())
    assert home.why(spec("fit", {"seed": 0, **new}), place()).headline == said


def test_what_a_stage_calls_otherwise_is_said_as_it_is_written(home: Recorded) -> None:
    """Also where a candidate of a grid is the only one of its kind."""
    sections = [{"layers": n, "grid": {}, "tasks": ["a"]} for n in ("4-6", "half")]
    home.publish(spec("fit", {"fit": {"layer": "values/4-6"}}), place(written=sections[0]))
    later = place(written={**sections[1], "tasks": ["a", "b"]})
    found = home.why(spec("fit", {"fit": {"layer": "values/half"}}), later)
    assert found.headline == "GLOT: layers 4-6 -> half"
    # A metric that the experiment names for the task is in no section of a method.
    home.publish(spec("fit", {"metric": "f1"}), place("mean", written={"metric": None}))
    found = home.why(spec("fit", {"metric": "mcc"}), place("mean", written={"metric": None}))
    assert found.headline == "mean: metric f1 -> mcc"


def test_a_candidate_that_a_grid_gained_is_said_by_the_grid(home: Recorded) -> None:
    grids = [{"layer": ["hidden/1"]}, {"layer": ["hidden/1", "hidden/2"]}]
    old, new = (place(written={"grid": g, "layer": "hidden/1"}) for g in grids)
    home.publish(spec("fit", {"layer": "hidden/1"}), old.model_copy(update={"choice": "one"}))
    candidate = new.model_copy(update={"choice": "two"})
    found = home.why(spec("fit", {"layer": "hidden/2"}), candidate)
    assert found.headline == "GLOT: grid.layer hidden/2 added"


def test_another_task_whose_texts_are_shown_is_named_by_its_field(home: Recorded) -> None:
    own, words, others = (f"corpus/{c * 32}" for c in "abc")

    def shown(task: str | None) -> Origin:
        return place(written={"kind": "head", **({WEIGHTS_OF: task} if task else {})})

    home.publish(spec("score", {"seed": 0}, own, words), shown("words"))
    for inputs, task, said in (
        ((own, own), "em", "report.weights_of words -> em"),
        ((own, others), "others", "report.weights_of words -> others"),
        ((own,), None, "report.weights_of words removed"),
        (
            (own, others),
            "words",
            "because 1 of its corpora changed: the corpus of before is not in",
        ),
    ):
        assert home.why(spec("score", {"seed": 0}, *inputs), shown(task)).headline.startswith(said)
    assert home.why(spec("score", {"seed": 0}, own), place()).headline == "2 -> 1 corpora"
    found = home.why(spec("score", {"seed": 0, "n": 1}, own, words), shown("em"))
    assert found.headline == "GLOT: n 1 added", "it is read as it was"


def test_changed_code_is_named_by_file(home: Recorded) -> None:
    before = {
        f"permafrost.stages.fit.{name}": "1" for name in ("fit:Fit", "fit:_a", "candidates:b")
    }
    more = {"permafrost.stages.fit:names": "1", "permafrost_plugins.own:f": "1"}
    home.publish(fit(code=before | more), place())
    code = dict.fromkeys((*before, *more), "2")
    assert home.why(fit(code=code), place()).headline == (
        "code of plug-ins changed: own.py; "
        "code of stages/fit changed: __init__.py, candidates.py, fit.py"
    )
    edited = {"permafrost.stages.fit.fit:_a": "2", "permafrost.storage.keys:new": "1"}
    found = home.why(fit(0.2, code=before | more | edited), place())
    assert found.headline == "GLOT: optim.lr 0.1 -> 0.2; code of stages/fit changed: fit.py"


def test_code_that_another_setting_reaches_is_no_changed_code(home: Recorded) -> None:
    here = {"permafrost.stages.fit:Fit": "1"}
    home.publish(fit(code={**here, "permafrost.stages.heads.kinds.glot:Glot": "1"}), place())
    later = {**here, "permafrost.stages.heads.kinds.scorer:Scorer": "1"}
    config = {"head": {"kind": "scorer", "hidden": 16}, "optim": {"lr": 0.1}, "seed": 0}
    found = home.why(spec("fit", config, **later), place())
    assert found.headline == "GLOT: head.kind glot -> scorer; GLOT: head.hidden 8 -> 16"
    moved = home.why(fit(code={**here, "permafrost.stages.heads.glot:Glot": "1"}), place())
    assert moved.headline == (
        "code of stages/heads changed: glot.py; code of stages/heads/kinds changed: glot.py"
    )


def score(made: str, *inputs: str) -> ArtifactSpec:
    return spec("score", {"batch_size": 64}, made, *inputs)


def test_downstream_names_what_changed_and_where_it_began(home: Recorded) -> None:
    home.publish(score(home.publish(fit(0.1), place())), place())
    home.publish(fit(0.2), place())
    later = score(str(fit(0.2).ref))
    found = home.why(later, place())
    assert found.headline == "because its fit changed: GLOT: optim.lr 0.1 -> 0.2"
    assert found.lines()[:2] == ["because its fit changed:", "  GLOT: optim.lr 0.1 -> 0.2"]
    explainer = home.explainer
    explainer.told = frozenset([str(fit(0.2).ref)])
    assert explainer.why(later, (place(),)).headline == "because its fit changed"


def test_a_report_names_a_score_whose_method_and_task_were_there(home: Recorded) -> None:
    def report(*scored: tuple[str, str]) -> ArtifactSpec:
        row = {"seed": 0, "role": "method", "category": "sts", "loss": None}
        cells = [{**row, "method": method, "task": task, "result": "r"} for method, task in scored]
        config = {"name": "mine", "report": {"title": "One"}, "page": "1" * 16, "cells": cells}
        return spec("report", {**config, "probes": [], "pretrainings": []})

    home.publish(report(("mean", "CoLA"), ("GLOT", "STS")), Origin(experiment="mine"))
    more = report(("mean", "CoLA"), ("GLOT", "STS"), ("GLOT", "CoLA"), ("mean", "STS"))
    assert home.why(more, Origin(experiment="mine")).headline == (
        "scores of GLOT on CoLA, of mean on STS added"
    )


def test_a_report_names_what_came_and_how_many_results_changed(home: Recorded) -> None:
    cells = [
        {
            "method": "GLOT",
            "task": "CoLA",
            "seed": seed,
            "role": "method",
            "category": "classification",
            "loss": "cross_entropy",
        }
        for seed in (0, 1)
    ]

    def report(lr: float, title: str, seeds: int) -> ArtifactSpec:
        refs = [home.publish(score(str(fit(lr, seed=s).ref)), place(seed=s)) for s in range(seeds)]
        for s in range(seeds):
            home.publish(fit(lr, seed=s), place(seed=s))
        config = {
            "name": "mine",
            "report": {"title": title},
            "page": "1" * 16,
            "cells": [{**c, "result": r, "fit": r} for c, r in zip(cells, refs, strict=False)],
            "probes": [],
            "pretrainings": [],
        }
        return spec("report", config, *refs)

    home.publish(report(0.1, "One", 1), Origin(experiment="mine"))
    found = home.why(report(0.2, "Two", 2), Origin(experiment="mine"))
    assert found.headline == "seed 1 added; report.title One -> Two"
    assert [str(c) for c in found.causes] == ["1 of its scores"]
    assert [r.text for r in found.roots] == ["GLOT: optim.lr 0.1 -> 0.2"]
    other = home.why(report(0.2, "Two", 2), Origin(experiment="another"))
    assert other.headline == "new: no earlier report of another"


def test_an_input_that_is_gone_is_said_to_be(home: Recorded) -> None:
    home.publish(fit(0.1, CORPORA[0]), place())
    found = home.why(fit(0.1, CORPORA[1]), place())
    assert found.headline == (
        "because its corpus changed: the corpus of before is not in this home any more"
    )


def test_another_store_is_told_by_what_it_was_made_with(home: Recorded, tmp_path: Path) -> None:
    others = {
        "weights_digest": "f" * 64,
        "tokenizer_digest": "e" * 64,
        "max_length": 64,
        "storage_dtype": "float32",
        "recipe": {"kind": "echo"},
    }
    new = IDENTITY.model_copy(update=others)
    old = new_store(tmp_path, identity=IDENTITY).store.store_id
    home.publish(fit(0.1, f"features/{old}/hidden/1"), place())
    extraction = spec("extract", {"store": new.model_dump(mode="json"), "arrays": ["hidden/1"]})
    home.publish(extraction, place("", seed=None, written={"source": "other"}))
    found = home.why(fit(0.1, f"features/{digest(new)}/hidden/1"), place())
    assert found.headline.startswith("because its features changed: backbone ")
    texts = [r.text for r in found.roots]
    assert texts[0].endswith("-> other (other weights)")
    assert "backbone.max_length 32 -> 64" in texts
    assert any(t.startswith("store_dtype float16 -> float32") for t in texts)
    assert any(t.startswith("recipe.kind ") for t in texts)
    assert "tokenizer" not in found.headline, "the weights say it"


def test_features_that_came_or_went_are_said_with_their_backbone(
    home: Recorded, tmp_path: Path
) -> None:
    """As those of node labels of a backbone of their own, which no store holds yet."""
    old = new_store(tmp_path, identity=IDENTITY).store.store_id
    other = IDENTITY.model_copy(update={"weights_digest": "f" * 64})
    one, both = f"features/{old}/hidden/1", f"features/{digest(other)}/hidden/1"
    planned = Node(
        kind="permafrost.flows.nodes.extraction:Extract",
        stage="extract",
        label="extract labels",
        config={"store": other.model_dump(mode="json"), "arrays": ["hidden/1"]},
        run_facts={"backbone": {"source": "nodes-of-graphs"}},
        origins=(Origin(name="labels"),),
    )
    home.publish(fit(0.1, one), place())
    home.publish(fit(0.1, one, both), place(task="SST-2"))
    explainer = replace(home.explainer, planned={planned.id: planned})
    assert explainer.why(fit(0.1, one, both), (place(),)).headline == (
        "reads features of backbone nodes-of-graphs"
    )
    assert explainer.why(fit(0.1, both), (place(task="SST-2"),)).headline.startswith(
        "no longer reads features of backbone "
    )
    found = explainer.why(fit(0.1, both), (place(),))
    assert found.headline.endswith("-> nodes-of-graphs (other weights)")


def test_layers_of_an_extraction_are_named(home: Recorded) -> None:
    def extraction(*arrays: str) -> ArtifactSpec:
        return spec("extract", {"store": IDENTITY.model_dump(mode="json"), "arrays": [*arrays]})

    home.publish(extraction("hidden/1", "hidden/2"), place("", seed=None))
    later = extraction("hidden/2", "hidden/5", "values/3")
    assert home.why(later, place("", seed=None)).headline == (
        "layers hidden/5, values/3 added; layer hidden/1 removed"
    )


def test_what_an_earlier_version_made_is_told_by_that_alone(home: Recorded) -> None:
    made = fit(0.1)
    home.publish(made, place())
    folder = home.artifacts.folder(made.ref)
    older = made.ref_of(KEY_VERSION - 1)
    update = {"key": older.key, "key_version": KEY_VERSION - 1}
    manifest = home.artifacts.manifest(made.ref).model_copy(update=update)
    folder.rename(folder.with_name(older.key))
    content = sealed_bytes(manifest.model_dump(mode="json"))
    (folder.with_name(older.key) / MANIFEST).write_bytes(content)
    assert home.why(fit(0.2), place()).headline == "made by an earlier version of Permafrost"


def test_homes_without_places_are_read_by_summaries_and_reports(home: Recorded) -> None:
    made = home.publish(fit(0.1))
    scored = home.publish(score(made), summary={"method": "GLOT", "task": "CoLA", "seed": 0})
    assert home.why(fit(0.2), place()).nearest is None, "nothing says which fit it is"
    cell = {"method": "GLOT", "task": "CoLA", "seed": 0, "result": scored, "fit": made}
    home.publish(spec("report", {"name": "mine", "cells": [cell]}))
    assert home.why(fit(0.2), place()).headline == "GLOT: optim.lr 0.1 -> 0.2"
    found = home.why(score(str(fit(0.2).ref)), place())
    assert found.nearest is not None
    assert str(found.nearest.ref) == scored


def test_a_place_of_a_later_version_is_left_out(home: Recorded) -> None:
    with home.artifacts.publishing(fit(0.1), {"origins": [{"planet": "Mars"}]}) as draft:
        (draft.folder / "x").write_text("x")
    assert home.why(fit(0.2), place()).nearest is None


def test_a_plan_reads_every_manifest_once(home: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        home.publish(fit(0.1, seed=seed), place(seed=seed))
    read: list[str] = []
    plain = ArtifactStore.manifest
    monkeypatch.setattr(
        ArtifactStore, "manifest", lambda self, ref: read.append(str(ref)) or plain(self, ref)
    )
    explainer = home.explainer
    for seed in range(20):
        found = explainer.why(fit(0.2, seed=seed), (place(seed=seed),))
        assert found.headline == "GLOT: optim.lr 0.1 -> 0.2"
    assert len(read) == len(set(read)) == 20
    assert parse_ref(read[0]).stage == "fit"
