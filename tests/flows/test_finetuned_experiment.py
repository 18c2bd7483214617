"""An experiment of heads trained with their backbone, from texts to the table of the report."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from permafrost.flows.build import build_graph
from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.nodes.report_writing import text_tokens
from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.stages.corpus.corpus import Corpus
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from tests.flows.experiments import rows_of, run_in, write
from tests.flows.looked import look
from tests.flows.scored_answers import answers_as_scored
from tests.stages.extraction.tiny_models import WORDS, save_model

pytestmark = pytest.mark.deep

TRAINED: dict[str, Any] = {
    "probe": "probe",
    "LoRA": {"kind": "lora", "r": 2, "dropout": 0.1},
    "full": "full",
    "last block": {"kind": "last_blocks", "n": 1},
}
TOP: dict[str, dict[str, Any]] = {
    "top live": {"kind": "last_blocks", "n": 1},
    "top cached": {"kind": "last_blocks", "n": 1, "below": "cached"},
}
"""Whose head reads what the trained block makes."""


def experiment(folder: Path) -> dict[str, Any]:
    lines = [f"{WORDS[2 + i % 9]} and {WORDS[3 + i % 7]} {i}\t{i % 2}" for i in range(24)]
    for split, some in (("train", lines[:12]), ("dev", lines[12:18]), ("test", lines[18:])):
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(some) + "\n")
    optim = {"lr": 0.01, "batch_size": 6, "max_epochs": 2, "patience": None}

    def method(**fields: object) -> dict[str, Any]:
        head = {"kind": "glot", "hidden": 8}
        return {"head": head, "layer": "hidden/2", "optim": dict(optim)} | fields

    return {
        "name": "tuned",
        "backbone": {"source": str(folder / "llama"), "max_length": 30},
        "store_dtype": "float32",
        "capture": "hidden=2",
        "tasks": {
            "words": {
                "kind": "files",
                "task": {"kind": "classification"},
                "files": {s: str(folder / f"{s}.tsv") for s in ("train", "dev", "test")},
            }
        },
        "methods": {
            "cached": method(
                kind="head",
                optim={**optim, "optimizer": "adamw", "weight_decay": 0.01, "max_grad_norm": 1.0},
            ),
            **{name: method(kind="finetuned", train=train) for name, train in TRAINED.items()},
            **{
                name: method(kind="finetuned", train=train, layer="hidden/3")
                for name, train in TOP.items()
            },
            "shuffled": method(kind="finetuned", train="full", labels="shuffled"),
            "own recipe": method(kind="finetuned", train="probe", recipe="bare"),
        },
        "recipes": {"bare": "plain:specials=exclude"},
        "seeds": [0],
        "report": {"title": "Tuned"},
        "runtime": {"extract": {"device": "cpu"}},
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, PipelineResult]:
    folder = tmp_path_factory.mktemp("tuned")
    save_model("llama", folder / "llama")
    return run_in(folder, experiment(folder))


@pytest.mark.deep
def test_every_row_is_in_the_report(ran: tuple[Path, Path, PipelineResult]) -> None:
    _, home, result = ran
    rows = {row["method"]: row for row in rows_of(result)}
    assert rows.keys() >= {"cached", *TRAINED, *TOP, "shuffled", "own recipe"}
    assert rows["probe"]["dev"] == pytest.approx(rows["cached"]["dev"])
    assert rows["top cached"]["dev"] == pytest.approx(rows["top live"]["dev"])
    assert rows["top cached"]["test"] == pytest.approx(rows["top live"]["test"])
    sizes = {name: row["n_parameters"] for name, row in rows.items() if row["n_parameters"]}
    assert sizes["probe"] == sizes["cached"] < sizes["LoRA"] < sizes["last block"] < sizes["full"]
    store = ArtifactStore(home)
    chosen = {
        m.summary["method"]: read_json(store.folder(m.ref) / "metrics.json")["choice"]
        for m in store.all("score")
    }
    assert chosen["LoRA"]["train.r"] == 2
    assert "train.kind" not in chosen["cached"]


def test_blocks_from_the_cache_wait_for_what_they_read(
    ran: tuple[Path, Path, PipelineResult],
) -> None:
    path, _, _ = ran
    nodes = build_graph(load_experiment(path))
    extraction = nodes.extractions["default", "words", 0]
    cached, live = (nodes.fits[name, "words", 0] for name in ("top cached", "top live"))
    assert extraction.id in cached.after
    assert [i.ref.rpartition("/hidden/")[2] for i in cached.inputs_named("features")] == ["2"]
    assert not live.inputs_named("features")
    half = build_graph(load_experiment(path, ["store_dtype=float16"]))
    assert half.fits["top cached", "words", 0].id != cached.id, "other states are read"
    assert half.fits["top live", "words", 0].id == live.id


def test_nothing_runs_again(ran: tuple[Path, Path, PipelineResult]) -> None:
    path, home, _ = ran
    assert not run_serially(path, home).computed


@pytest.mark.parametrize("method", ["LoRA", pytest.param("top cached", marks=pytest.mark.deep)])
def test_texts_are_answered_as_they_were_scored(
    ran: tuple[Path, Path, PipelineResult], method: str
) -> None:
    path, home, _ = ran
    dag, cell = look(path, home), (method, "words", 0)
    head, scored = (n[cell].spec.ref for n in (dag.nodes.fits, dag.nodes.scores))
    # By the backbone, where the score may have read stored states, in passes of other texts.
    corpus = load_corpus(home)
    given = home, str(head), dag.artifacts.open(scored), corpus
    assert answers_as_scored(*given, rtol=2e-4, atol=2e-5) == 2


def load_corpus(home: Path) -> Corpus:
    store = ArtifactStore(home)
    return Corpus.load(store.open(store.refs("corpus")[0]))


def test_adapters_lie_in_the_artifact_as_peft_writes_them(
    ran: tuple[Path, Path, PipelineResult],
) -> None:
    _, home, _ = ran
    (adapters,) = home.glob("artifacts/finetune/*/backbone/adapter_model.safetensors")
    assert adapters.with_name("adapter_config.json").is_file()
    assert all(torch.isfinite(v).all() for v in load_file(adapters).values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "methods.full.layer=hidden/9",
            "hidden=9 was asked for, but this llama backbone has hidden 0",
        ),
        ("methods.full.train.kind=half", "half"),
        ("methods.last block.train.n=9", "last_blocks with n 9, but the backbone has 3 blocks"),
        (
            "methods.top cached.layer=hidden/2",
            "reads hidden/2, but with below: cached the first block that runs is 3 of 3",
        ),
        ("methods.LoRA.optim.backbone_lr=-1", "greater than or equal to 0"),
        ("backbone.dtype=bfloat16", "backbone.dtype is bfloat16, in which most steps round"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(
    ran: tuple[Path, Path, PipelineResult], tmp_path: Path, change: str, message: str
) -> None:
    path, _, _ = ran
    with pytest.raises(InputError, match=message):
        run_serially(path, tmp_path / "home", [change])
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("method", ["probe", "LoRA"])
def test_two_half_precisions_are_refused_before_anything_runs(
    ran: tuple[Path, Path, PipelineResult], tmp_path: Path, method: str
) -> None:
    fields = yaml.safe_load(ran[0].read_text())
    path = write(tmp_path / "half.yaml", {**fields, "methods": {method: fields["methods"][method]}})
    half = [f"methods.{method}.optim.precision=bfloat16", "backbone.dtype=float16"]
    message = r"precision is bfloat16 and backbone\.dtype is float16, .* to float32 or bfloat16, or"
    with pytest.raises(InputError, match=message):
        run_serially(path, tmp_path / "home", half)
    assert not (tmp_path / "home").exists()


def test_a_report_asks_for_no_text_that_is_not_stored(
    ran: tuple[Path, Path, PipelineResult],
) -> None:
    """A head on a backbone that was trained with another one reads no store of the experiment's own."""
    path, home, _ = ran
    report, context = look(path, home).nodes.report, RunContext(home, RunRuntime())
    first = load_corpus(home).digests[0]
    assert text_tokens(report, context, [first, "0" * 64]).keys() == {first}
    assert text_tokens(report, context, ["0" * 64]) == {}


def test_nothing_else_has_to_read_the_backbone(
    ran: tuple[Path, Path, PipelineResult], tmp_path: Path
) -> None:
    fields = yaml.safe_load(ran[0].read_text())
    methods = {"LoRA": fields["methods"]["LoRA"]}
    alone = write(tmp_path / "alone.yaml", {**fields, "methods": methods, "capture": None})
    (extraction,) = build_graph(load_experiment(alone)).extractions.values()
    assert extraction.config["arrays"] == ["pooled/hidden_last/0"], "the report asks for its tokens"
