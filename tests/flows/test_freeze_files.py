"""The experiment files of FREEZE!'s figures and claims: they parse, plan, and have its rows."""

from functools import cache
from pathlib import Path

import pytest

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.checks import check
from permafrost.flows.experiment import load_experiment
from permafrost.flows.methods.layers import LayersMethod
from permafrost.flows.plan import make_plan
from tests.stages.extraction.tiny_models import WORDS, save_model
from tests.stages.freeze.layer_reference import generator
from tests.stages.mteb_evaluation.small_tasks import write_rows

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "papers" / "freeze"
RUNGS = ("cosine MLP", "siamese", "narrow", "widened late")
OWN = {"cosine MLP, as in the notebooks", "siamese, as in the notebooks"}
LADDER = {
    *OWN,
    *(f"{rung}{loss}" for rung in RUNGS for loss in ("", ", variance", ", log-variance")),
    "widened late, log-variance, sigmoid",
    "best block (no training)",
}
CONTROLS = {"early widened", "wide everywhere", "wider still", "deeper late"}
ROWS = {
    "figure1": {"best block on dev"},
    "ladder": {*LADDER, "mean of the last block (no training)"},
    "widths": {
        *("siamese", "siamese, equal parameters", "narrow", "widened late", *CONTROLS),
        *("narrow, from scratch", "widened late, from scratch"),
    },
    "layers": {
        *(f"block {k} alone" for k in range(1, 7)),
        *(f"without block {k}" for k in range(1, 7)),
        *("all blocks", "last block", "deep half", "cosine MLP on plain cosines"),
        "MLP on the scores of single blocks",
    },
    "unified": {
        *("sum of maps up", "sum of maps up, MSE", "weights of blocks", "attention over blocks"),
        *("mean over blocks", "side by side", "all blocks, pairs"),
    },
    "variants": {
        *("as in the ladder", "from scratch", "pretrained for 5 epochs"),
        *("pretrained for 160 epochs", "mean of tokens", "standardised by feature"),
        *("standardised by vector", "centred"),
    },
    "sums": {
        *("decoders from the sum", "decoders from the sum, MSE", "sum of maps up"),
        *("sum of maps up, MSE", "as in the ladder", "mean of tokens", "sum of tokens"),
    },
    "snli": {
        *("as in the ladder", "from scratch", "pretrained on SNLI", "from scratch, SNLI's shape"),
    },
    "paper/gpt2": {
        *LADDER,
        *CONTROLS,
        *("widened late, from scratch", "narrow, last block", "narrow, deep half"),
        *(f"narrow, without block {k}" for k in (1, 12, 24)),
        *(f"block {k} alone" for k in (1, 6, 12, 18, 23, 24)),
        *(f"unified, {how}" for how in ("sum of maps up", "weights of blocks")),
        *("unified, attention over blocks", "standardised by feature", "standardised by vector"),
        *(
            "mean of tokens",
            "sum of tokens",
            "pretrained on SNLI",
            "unified, decoders from the sum",
        ),
        "MLP on the scores of single blocks",
    },
    "paper/qwen2": {*RUNGS, "widened late, log-variance"},
}
"""Rows by file; docs/papers/freeze.md says which of the paper's are missing."""
MODELS = {"paper/gpt2": "gpt2", "paper/qwen2": "qwen2"}


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models with the blocks of the paper's and of the twins', and made-up data."""
    folder = tmp_path_factory.mktemp("freeze")
    save_model("llama", folder / "mixed6m-gqa", num_hidden_layers=6)
    save_model("gpt2", folder / "gpt2", n_layer=24)
    save_model("llama", folder / "qwen2", num_hidden_layers=24)
    for name in ("stsb", "genericskb", "snli"):
        (folder / name).mkdir()
    for n, split in enumerate(("train", "dev", "test")):
        rows = [
            {
                "sentence1": f"the {WORDS[2 + i]} {split}",
                "sentence2": f"a {WORDS[3 + i]}",
                "score": i % 6,
            }
            for i in range(12)
        ]
        write_rows(folder / "stsb" / f"{split}.parquet", rows)
        if n < 2:
            sentences = [{"sentence": f"{WORDS[2 + i]} and {split}"} for i in range(12)]
            path = folder / "genericskb" / ("train.parquet" if n == 0 else "valid.parquet")
            write_rows(path, sentences)
    related = [
        {"sentence1": f"a {WORDS[i]}", "sentence2": f"no {WORDS[i]}", "label": i % 3}
        for i in range(12)
    ]
    write_rows(folder / "snli" / "dev.parquet", related)
    return folder


@pytest.fixture(autouse=True)
def environment(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERMAFROST_DATA", "PERMAFROST_MODELS"):
        monkeypatch.setenv(name, str(stand_ins))


@cache
def built(name: str, folder: Path) -> ExperimentGraph:
    small = [f"backbone.source={folder / MODELS[name]}"] if name in MODELS else []
    return build_graph(
        load_experiment(FOLDER / f"{name}.yaml", [*small, "backbone.max_length=40", "seeds=[0]"])
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_file_plans_and_has_the_papers_rows(name: str, stand_ins: Path, tmp_path: Path) -> None:
    nodes = built(name, stand_ins)
    experiment = nodes.experiment
    assert {*experiment.methods} == ROWS[name]
    assert {method for method, _, _ in nodes.fits} == ROWS[name]
    used = {m.pretraining() for m in experiment.methods.values()} - {None}
    assert used == {*experiment.pretrainings}, "every pretraining is somebody's"
    plan = make_plan(nodes, check(nodes, tmp_path / "home"))
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert plan.n_tokens > 0
    assert not (tmp_path / "home").exists()


def test_early_widened_and_late_widened_have_equally_many_parameters(stand_ins: Path) -> None:
    methods = built("widths", stand_ins).experiment.methods
    sizes = {name: head_size(method) for name, method in methods.items()}
    assert sizes["narrow"] < sizes["widened late"] == sizes["early widened"] == 414_497
    assert sizes["siamese"] == 398_337
    assert sizes["siamese, equal parameters"] == 412_359


def head_size(method: object) -> int:
    """Parameters of a head on the blocks of mixed6m-gqa."""
    assert isinstance(method, LayersMethod)
    return method.head.build(6, 256, generator()).n_parameters


def test_every_file_is_here_and_on_the_papers_page() -> None:
    page = (ROOT / "docs" / "papers" / "freeze.md").read_text(encoding="utf-8")
    found = {p.relative_to(FOLDER).with_suffix("").as_posix(): p for p in FOLDER.rglob("*.yaml")}
    assert {*found} == {*ROWS}
    for name, path in found.items():
        text = path.read_text(encoding="utf-8")
        assert f"`{name}.yaml`" in page
        assert text.startswith("# FREEZE!")
        seeds = "[42, 43, 44]" if name in MODELS else "[0]" if name == "figure1" else "[0, 1, 2]"
        assert f"\nseeds: {seeds}\n" in text
