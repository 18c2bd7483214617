"""An adapted backbone is a backbone like any other: extracted, cached, read, checked and explained."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

import permafrost
from permafrost.flows.disk.array_drops import drop_planned, plan_drop
from permafrost.flows.disk.garbage import collect
from permafrost.flows.disk.limits import Limits
from permafrost.flows.nodes.adapting import Adapt
from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.flows.why.earlier import Earlier
from permafrost.flows.why.explaining import Explainer
from permafrost.flows.why.reasons import UNKNOWN_STORE
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.target import resolve_backbone
from permafrost.storage.adapted_stores import backbone_of_store
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import InputError, StoreBusyError
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.progress import SilentProgress
from tests.flows.experiments import pairs, rows_of, run_in, write
from tests.flows.looked import look
from tests.flows.run_records import begun
from tests.flows.test_cli import Cli
from tests.stages.extraction.tiny_models import save_model
from tests.stages.mteb_evaluation.small_tasks import task, write_task

pytestmark = pytest.mark.deep

Ran = tuple[Path, Path, PipelineResult]
OPTIM = {"lr": 0.01, "batch_size": 8, "max_epochs": 1}


def experiment(folder: Path) -> dict[str, Any]:
    head = {"head": {"kind": "mean"}, "layer": "hidden/2", "optim": OPTIM}
    columns = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    files = {split: str(folder / f"{split}.parquet") for split in ("train", "dev", "test")}
    lora = {"kind": "lora", "r": 2}
    return {
        "name": "adapted",
        "backbone": {"source": str(folder / "llama"), "max_length": 30},
        "store_dtype": "float32",
        "capture": "hidden=2",
        "tasks": {"pairs": {"kind": "files", "files": files, "task": columns}},
        "methods": {
            "LoRA": {
                **head,
                "kind": "finetuned",
                "train": lora,
                "optim": {**OPTIM, "backbone_lr": 0.05},
            },
            "base": {**head, "kind": "head"},
            "on tuned": {**head, "kind": "head", "backbone": "tuned"},
            "mean of tuned": {"kind": "embed", "layers": "3", "backbone": "tuned"},
        },
        "adapted": {"tuned": {"method": "LoRA", "task": "pairs"}},
        "evaluations": {
            "mteb": {
                "tasks": {"sts": {"kind": "local", "type": "sts", "path": str(folder / "sts")}},
                "methods": ["LoRA", "on tuned", "mean of tuned"],
                "fitted_on": "pairs",
            }
        },
        "seeds": [0],
        "report": {"title": "Adapted"},
        "runtime": {"extract": {"device": "cpu"}},
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    save_model("llama", folder / "llama")
    write_task(folder, "sts")
    for seed, split in enumerate(("train", "dev", "test")):
        pairs(folder / f"{split}.parquet", 16, seed)
    return folder


@pytest.fixture(scope="module")
def ran(data: Path) -> Ran:
    return run_in(data, experiment(data))


def bytes_of(*folders: Path) -> dict[Path, str]:
    return {
        p: hashlib.sha256(p.read_bytes()).hexdigest()
        for folder in folders
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def stores_of(home: Path) -> tuple[FeatureStore, list[FeatureStore]]:
    """The base's, and those of adapted backbones."""
    stores = all_stores(home)
    adapted = [s for s in stores if s.record.backbone["source"].startswith("adapt/")]
    (base,) = [s for s in stores if s not in adapted]
    return base, adapted


@pytest.mark.deep
def test_methods_on_it_are_in_the_report_beside_the_others(ran: Ran) -> None:
    _, home, result = ran
    rows = {row["method"]: row for row in rows_of(result)}
    assert rows.keys() >= {"LoRA", "base", "on tuned", "mean of tuned"}
    assert rows["on tuned"]["test"] != rows["base"]["test"]
    _, (store,) = stores_of(home)
    assert set(store.arrays()) >= {"hidden/2", "hidden/3"}
    shown = result.report.read_text(encoding="utf-8")
    assert store.store_id in shown
    assert store.record.identity.weights_digest in shown


def test_evaluations_read_it_too_and_a_tuned_head_its_own(ran: Ran, data: Path) -> None:
    path, home, result = ran
    scores = {row["method"]: row for row in rows_of(result) if row["task"] == "sts"}
    graded = task(data, "sts").read().tables["test"]
    dag = look(path, home)
    _, adapted = stores_of(home)
    assert len(adapted) == 1, "the evaluation of LoRA reads the very backbone that is named tuned"
    by_encoder = {
        "LoRA": dag.nodes.fits["LoRA", "pairs", 0].id,
        "on tuned": dag.nodes.fits["on tuned", "pairs", 0].id,
    }
    encoders = {
        method: permafrost.open(home).encoder(made, device="cpu")
        for method, made in by_encoder.items()
    }
    copied = backbone_of_store(adapted[0], None)
    sides = [[str(text) for text in graded[f"sentence{i}"]] for i in (1, 2)]

    def vectors(method: str, texts: list[str]) -> np.ndarray:
        if method in encoders:
            return encoders[method].encode(texts)
        # As on any other backbone, from a copy of the folder.
        backbone = {"source": str(copied), "max_length": 30}
        mean = {"method": "mean", "layers": "3"}
        return permafrost.encode(texts, backbone=backbone, method=mean, device="cpu")

    for method, row in scores.items():
        one, other = (vectors(method, texts).astype(np.float64) for texts in sides)
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        # Equal texts have the cosine 1 whatever the last digits are.
        cosines = np.round((one * other).sum(axis=1) / lengths, 6)
        assert row["test"] == pytest.approx(spearmanr(cosines, graded["score"])[0], abs=1e-4)
    assert scores.keys() == {"LoRA", "on tuned", "mean of tuned"}
    sizes = {method: row["n_parameters"] for method, row in scores.items()}
    assert sizes["LoRA"] > (sizes["on tuned"] or 0)


def test_its_id_is_that_of_its_weights_wherever_they_lie(ran: Ran, tmp_path: Path) -> None:
    _, home, _ = ran
    base, (store,) = stores_of(home)
    (manifest,) = ArtifactStore(home).all("adapt")
    shutil.copytree(ArtifactStore(home).folder(manifest.ref) / "model", tmp_path / "copy")
    elsewhere = BackboneConfig(source=str(tmp_path / "copy"), max_length=30)
    identity = store.record.identity
    target = resolve_backbone(elsewhere, "float32", "none").target(
        resolve_recipe_of(store), ("hidden/2",)
    )
    assert target.identity == identity
    assert manifest.summary["weights_digest"] == identity.weights_digest
    assert identity.weights_digest != base.record.identity.weights_digest
    assert identity.tokenizer_digest == base.record.identity.tokenizer_digest


def resolve_recipe_of(store: FeatureStore) -> Any:
    from permafrost.stages.extraction.recipes import recipe_of

    return recipe_of(store.record.identity.recipe)


def test_its_features_are_those_that_are_computed_again(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, home, _ = ran
    moved = Cli(tmp_path / "moved", capsys)
    shutil.copytree(home, moved.home)
    _, (store,) = stores_of(moved.home)
    assert store.root.is_relative_to(backbone_home(store)), "found where the home is now"
    found = moved.json("verify", store.store_id[:12], "--recompute", "5")
    assert not found["problems"]
    assert {one["array"] for one in found["recomputed"]} >= {"hidden/2", "hidden/3"}
    assert all(one["agrees"] for one in found["recomputed"])
    dag = look(ran[0], home)
    out = tmp_path / "exported"
    done = moved.json("export", dag.nodes.fits["on tuned", "pairs", 0].id, "-o", str(out))
    assert done["form"] == "module"
    backbone = backbone_of_store(store, None)
    assert bytes_in(out / "backbone") == bytes_in(Path(str(backbone)))
    assert store.record.backbone["source"] in (out / "README.md").read_text()
    (adapted,) = ArtifactStore(moved.home).refs("adapt")
    ArtifactStore(moved.home).remove(adapted)
    said = moved("verify", store.store_id[:12], "--recompute", "1", code=2)
    assert f"the adapted backbone {adapted} is not under" in said
    assert "run its experiment again" in said


def backbone_home(store: FeatureStore) -> Path:
    """The home in which the adapted backbone of a store is looked for."""
    return Path(str(backbone_of_store(store, None))).parents[3]


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_nothing_runs_again_and_the_plan_says_so(ran: Ran) -> None:
    path, home, _ = ran
    plan = look(path, home).plan()
    assert all(row.n_run == 0 for row in plan.rows)
    _, (store,) = stores_of(home)
    assert store.store_id in {one["store_id"] for one in plan.as_json()["stores"]}
    assert not run_serially(path, home).computed


def test_before_training_the_plan_knows_all_but_the_id(ran: Ran, tmp_path: Path) -> None:
    path, home, _ = ran
    plan = look(path, tmp_path / "home").plan()
    assert {"corpus", "finetune", "adapt", "store", "extract", "fit"} <= {
        r.stage for r in plan.rows
    }
    assert UNKNOWN_STORE in {row.why for row in plan.rows if row.stage == "extract"}
    (waiting,) = [one for one in plan.as_json()["stores"] if one["store_id"] is None]
    assert waiting["adapted"] == "tuned"
    _, (store,) = stores_of(home)
    segments = [store.segment(s) for s in store.segments()]
    assert waiting["n_new_texts"] == sum(s.n_texts for s in segments)
    assert waiting["n_tokens"] == sum(s.n_tokens for s in segments)
    assert not (tmp_path / "home").exists()


def test_an_evaluation_reads_the_backbone_of_each_seed_without_a_name(
    data: Path, tmp_path: Path
) -> None:
    content = experiment(data)
    lora = content["methods"]["LoRA"]
    probe = {**lora, "train": "probe", "optim": OPTIM}
    content |= {"adapted": {}, "seeds": [0, 1], "methods": {"LoRA": lora, "probe": probe}}
    content["evaluations"]["mteb"]["methods"] = ["LoRA", "probe"]
    dag = look(write(tmp_path / "experiment.yaml", content), tmp_path / "home")
    tuned = [f"LoRA · pairs · seed {seed}" for seed in (0, 1)]
    assert {n.label for n in dag.nodes.graph if n.stage == "adapt"} == {f"adapt {t}" for t in tuned}
    assert dag.stores.keys() == {"default", *(f"default on {t}" for t in tuned)}
    for (method, _, seed), node in dag.nodes.evaluations.items():
        own = "default" if method == "probe" else f"default on {tuned[seed]}"
        assert node.run_facts["stores"] == {"text": list(dag.stores[own].names)}
        assert node.input("fitted").ref == dag.nodes.fits[method, "pairs", seed].id


@pytest.mark.deep
def test_another_training_is_another_backbone(ran: Ran, tmp_path: Path, data: Path) -> None:
    path, home, _ = ran
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    base, (first,) = stores_of(copy)
    before = bytes_of(base.root, first.root, data / "llama")
    change = "methods.LoRA.optim.backbone_lr=0.02"
    result = run_serially(path, copy, [change])
    assert set(result.computed) == {
        "finetune",
        "score",
        "adapt",
        "store",
        "extract",
        "fit",
        "embed",
        "evaluate",
        "report",
    }
    assert bytes_of(base.root, first.root, data / "llama") == before
    _, adapted = stores_of(copy)
    assert {s.store_id for s in adapted} > {first.store_id}
    artifacts, nodes = ArtifactStore(copy), look(path, copy, [change]).nodes.graph
    (made,) = [node for node in nodes if node.stage == "embed"]
    explainer = Explainer(Earlier(artifacts), lambda ref: None)
    told = explainer.why(made.spec, made.origins, before=artifacts.manifest(made.ref))
    assert told.headline == ("because its features changed: LoRA: optim.backbone_lr 0.05 -> 0.02")


def test_arrays_of_it_are_dropped_only_where_no_run_reads_them(ran: Ran, tmp_path: Path) -> None:
    _, home, _ = ran
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    _, (store,) = stores_of(copy)
    permafrost.open(copy).pin("adapted@1")
    silent = SilentProgress()

    def readers() -> list[tuple[str, str]]:
        found = plan_drop(copy, store.store_id, ["hidden/2"]).readers
        return [(reader.what, reader.name) for reader in found]

    assert readers() == [("pinned", "adapted@1"), ("latest", "adapted")]
    with pytest.raises(InputError, match="adapted@1 reads hidden/2"):
        drop_planned(plan_drop(copy, store.store_id, ["hidden/2"]), "unused", silent)
    # One that has begun before the backbone was trained, when no store had an id.
    refs = [str(m.ref) for m in ArtifactStore(copy).all()]
    begun(copy, "now", refs)
    assert readers()[0] == ("running", "now@1")
    with pytest.raises(StoreBusyError, match="now@1 is going on and may read hidden/2"):
        drop_planned(plan_drop(copy, store.store_id, ["hidden/2"]), "used", silent)
    assert "hidden/2" in store.arrays()


def test_it_is_as_young_as_what_was_made_from_it(ran: Ran, tmp_path: Path) -> None:
    _, home, _ = ran
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    shutil.rmtree(copy / "runs")
    _, (store,) = stores_of(copy)
    for path in copy.rglob("*"):
        os.utime(path, (1000, 1000))
    fits = ArtifactStore(copy).all("fit")
    (fit,) = [
        m.ref
        for m in fits
        if any(i.startswith("features/") for i in m.spec.inputs)
        and not any(
            i.startswith(f"features/{s.store_id}/") for s in all_stores(copy) for i in m.spec.inputs
        )
    ]
    os.utime(ArtifactStore(copy).folder(fit) / "artifact.json", (5000, 5000))
    uses = collect(copy, [], limits=Limits(older_than_s=0)).uses
    assert uses is not None
    assert uses.time(f"features/{store.store_id}") == 5000
    assert {uses.time(str(r)) for r in ArtifactStore(copy).refs("adapt")} == {5000}


def test_garbage_is_what_no_run_reaches(ran: Ran, tmp_path: Path) -> None:
    path, home, _ = ran
    copy = tmp_path / "home"
    shutil.copytree(home, copy)
    assert not collect(copy, []).folders, "all of it is in use"
    (fit,) = [
        m.ref
        for m in ArtifactStore(copy).all("fit")
        if look(path, copy).nodes.graph[str(m.ref)].label == "fit on tuned · pairs · seed 0"
    ]
    for record in copy.glob("runs/*.json"):
        record.unlink()
    garbage = collect(copy, [str(fit)])
    garbage.remove()
    kept = {m.spec.stage for m in ArtifactStore(copy).all()}
    assert kept == {"corpus", "finetune", "adapt", "store", "fit"}
    adapted = all_stores(copy)
    assert [s.record.backbone["source"].partition("/")[0] for s in adapted] == ["adapt"]


@pytest.mark.deep
def test_a_run_that_ends_before_extraction_loses_nothing(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, result = ran
    home = tmp_path / "home"

    def fail(*_: object) -> None:
        raise OSError("the machine stops")

    with monkeypatch.context() as patch:
        patch.setattr(Adapt, "run", fail)
        with pytest.raises(OSError, match="the machine stops"):
            run_serially(path, home)
    assert not collect(home, []).folders
    again = run_serially(path, home)
    assert "finetune" not in again.computed
    assert again.computed["adapt"] == 1
    rows, others = ({row["method"]: row["test"] for row in rows_of(r)} for r in (result, again))
    assert rows == others


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "adapted.tuned.method=nobody",
            "adapted.tuned.method names 'nobody'; there are LoRA",
        ),
        ("adapted.tuned.method=base", "is of kind head and leaves the backbone as it is"),
        ("methods.LoRA.train=probe", "'train: probe' changes nothing of the backbone"),
        (
            "adapted.tuned.task=others",
            "adapted.tuned.task is 'others', but 'LoRA' is trained on pairs",
        ),
        ("adapted.tuned.seed=7", "adapted.tuned.seed is 7, but 'LoRA' is trained with the seeds 0"),
        ("methods.base.backbone=bert", "methods.base.backbone names the adapted backbone 'bert'"),
        (
            "methods.LoRA.layer=values/1-2",
            "'LoRA', which reads 'values/1-2', several arrays at once",
        ),
        ("recipes={default on tuned: plain}", "recipes has the name 'default on tuned'"),
        ("methods.on tuned.layer=hidden/9", "this llama backbone has hidden 0 to 3"),
    ],
)
def test_wrong_names_are_refused_before_anything_runs(
    ran: Ran, tmp_path: Path, change: str, message: str
) -> None:
    path, _, _ = ran
    with pytest.raises(InputError, match=message):
        run_serially(path, tmp_path / "home", [change])
    assert not (tmp_path / "home").exists()
