"""The experiment files of FREEZE!'s figures and claims: they parse, plan, and have its rows."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.checks import check
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.methods.layers import LayersMethod
from permafrost.flows.plan import make_plan
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.report.claim_kinds import AnyClaim, Claim, CurveClaim, SameBest, Within
from tests.flows.kinds_in_keys import unkeyed_kinds
from tests.short import short
from tests.stages.extraction.tiny_models import WORDS, save_model
from tests.stages.freeze.layer_reference import generator
from tests.stages.mteb_evaluation.small_tasks import write_rows

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "papers" / "freeze"
RUNGS = ("cosine MLP", "siamese", "narrow", "widened late")
LOSSES = ("", ", variance", ", log-variance")
CONSTANT = "constant answer"
OWN = {"cosine MLP, as in the notebooks", "siamese, as in the notebooks"}
LADDER = {
    *OWN,
    *(f"{rung}{loss}" for rung in RUNGS for loss in LOSSES),
    "widened late, log-variance, sigmoid",
    "best block (no training)",
}
WIDTHS = {"early widened", "wide everywhere", "wider still", "deeper late"}
LADDER_CONTROLS = {
    *(f"{rung}, shuffled labels" for rung in ("cosine MLP", "siamese", "widened late")),
    CONSTANT,
}
"""Of ladder.yaml and the files at the paper's size."""
IN_LADDER = {"as in the ladder, shuffled labels", CONSTANT}
ROWS = {
    "figure1": {"best block on dev"},
    "ladder": {*LADDER, *LADDER_CONTROLS, "mean of the last block (no training)"},
    "widths": {
        *("siamese", "siamese, equal parameters", "narrow", "widened late", *WIDTHS),
        *("narrow, from scratch", "widened late, from scratch"),
        *("widened late, shuffled labels", CONSTANT),
    },
    "layers": {
        *(f"block {k} alone" for k in range(1, 7)),
        *(f"without block {k}" for k in range(1, 7)),
        *("all blocks", "last block", "deep half", "cosine MLP on plain cosines"),
        "best block chosen on dev",
        *("MLP on the scores of single blocks", CONSTANT),
        *(f"{row}, shuffled labels" for row in ("all blocks", "block 6 alone")),
    },
    "unified": {
        *("sum of maps up", "sum of maps up, MSE", "weights of blocks", "attention over blocks"),
        *("mean over blocks", "side by side", "all blocks, pairs", CONSTANT),
        *(f"{row}, shuffled labels" for row in ("sum of maps up", "all blocks, pairs")),
    },
    "variants": {
        *("as in the ladder", "from scratch", "pretrained for 5 epochs"),
        *("pretrained for 160 epochs", "mean of tokens", "standardised by feature"),
        *("standardised by vector", "centred", *IN_LADDER),
    },
    "sums": {
        *("decoders from the sum", "decoders from the sum, MSE", "sum of maps up"),
        *("sum of maps up, MSE", "as in the ladder", "mean of tokens", "sum of tokens"),
        *IN_LADDER,
    },
    "snli": {
        *("autoencoders", "from scratch", "pretrained on SNLI", "from scratch, SNLI's shape"),
        *("autoencoders, shuffled labels", CONSTANT),
    },
    "paper/gpt2": {
        *LADDER,
        *WIDTHS,
        *LADDER_CONTROLS,
        *("widened late, from scratch", "narrow, last block", "narrow, deep half"),
        "narrow, best block chosen on dev",
        *(f"narrow, without block {k}" for k in range(1, 25)),
        *(f"block {k} alone" for k in range(1, 25)),
        *("MLP on the scores of single blocks", "block 24 alone, shuffled labels"),
        *(f"unified, {how}" for how in ("sum of maps up", "weights of blocks", "pairs")),
        *("unified, attention over blocks", "unified, decoders from the sum"),
        *(f"unified, {how}, shuffled labels" for how in ("sum of maps up", "pairs")),
        *("standardised by feature", "standardised by vector", "narrow, shuffled labels"),
        *("mean of tokens", "sum of tokens", "pretrained on SNLI", "pretrained for 50 epochs"),
    },
    "paper/qwen2": {
        *(f"{rung}{loss}" for rung in RUNGS for loss in LOSSES),
        *LADDER_CONTROLS,
        "widened late, as in the notebook",
    },
}
"""Rows by file; docs/papers/freeze.md says which of the paper's are missing."""
NAMED_OTHERWISE = {
    "all blocks": "narrow",
    "all blocks, pairs": "unified, pairs",
    "as in the ladder": "widened late",
    "autoencoders": "widened late, log-variance",
    "from scratch": "widened late, from scratch",
    **{
        row: f"narrow, {row}"
        for row in ("last block", "deep half", "best block chosen on dev", "without block 0")
    },
    **{
        row: f"unified, {row}"
        for row in (
            *("sum of maps up", "weights of blocks", "attention over blocks"),
            "decoders from the sum",
        )
    },
}
"""Rows of small files that paper/gpt2.yaml calls otherwise; `0` is any number."""
ONLY_SMALL = {
    "not in the paper: a siamese head of as many parameters is not as good",
    "not in the paper: SNLI is above the same encoders from scratch",
    "4.3: nor is still better one",
}
"""What is said of rows that paper/gpt2.yaml does not have."""
SIZES = BackboneSizes(
    model_type="gpt2",
    n_layers=24,
    d_model=1024,
    d_value=1024,
    n_attn_heads=16,
    n_kv_heads=16,
    d_head=64,
    has_final_norm=True,
    is_decoder=True,
    max_positions=1024,
)
"""Of GPT-2-medium."""
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


@pytest.mark.parametrize("name", short(ROWS, "ladder", "unified"))
def test_a_file_plans_and_has_the_papers_rows(name: str, stand_ins: Path, tmp_path: Path) -> None:
    nodes = built(name, stand_ins)
    experiment = nodes.experiment
    assert {*experiment.methods} == ROWS[name]
    assert {method for method, _, _ in nodes.fits} == ROWS[name]
    used = {m.pretraining() for m in experiment.methods.values()} - {None}
    assert used == {*experiment.pretrainings}, "every pretraining is somebody's"
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, check(nodes, tmp_path / "home"))
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert plan.n_tokens > 0
    assert not (tmp_path / "home").exists()


def test_every_file_that_trains_on_labels_has_a_control(stand_ins: Path) -> None:
    for name in ROWS:
        methods = built(name, stand_ins).experiment.methods
        trained = [m for m in methods.values() if m.is_random]
        if not trained:
            assert name == "figure1"
            continue
        roles = {row: method.role_on(None) for row, method in methods.items()}
        controls = {row for row, role in roles.items() if role == "control"}
        assert controls == {row for row in ROWS[name] if row.endswith(", shuffled labels")} != set()
        assert roles[CONSTANT] == "baseline"
        for row in controls:
            control, method = methods[row], methods[row.removesuffix(", shuffled labels")]
            assert isinstance(control, LayersMethod)
            assert control.model_copy(update={"labels": "true"}) == method


def test_a_row_that_files_share_is_one_fit(stand_ins: Path) -> None:
    def fit(name: str, row: str) -> str:
        return built(name, stand_ins).fits[row, "STS-B", 0].id

    for end in ("", ", shuffled labels"):
        one = fit("ladder", f"widened late{end}")
        assert fit("widths", f"widened late{end}") == one
        for name in ("variants", "sums"):
            assert fit(name, f"as in the ladder{end}") == one, name
    assert fit("layers", "cosine MLP on plain cosines") == fit("ladder", "cosine MLP")


def test_early_widened_and_late_widened_have_equally_many_parameters(stand_ins: Path) -> None:
    methods = built("widths", stand_ins).experiment.methods
    sizes = {n: head_size(method) for n, method in methods.items() if n != CONSTANT}
    assert sizes["narrow"] < sizes["widened late"] == sizes["early widened"] == 414_497
    assert sizes["siamese"] == 398_337
    assert sizes["siamese, equal parameters"] == 412_359


def head_size(method: object) -> int:
    """Parameters of a head on the blocks of mixed6m-gqa."""
    assert isinstance(method, LayersMethod)
    return method.head.build(6, 256, generator()).n_parameters


def said(claim: AnyClaim) -> tuple[object, ...]:
    """A claim without what differs with the number of blocks and epochs."""

    def called(names: Iterable[str]) -> frozenset[str]:
        plain = (re.sub(r"\d+", "0", name) for name in names)
        return frozenset(NAMED_OTHERWISE.get(name, name) for name in plain)

    match claim:
        case Claim():
            sides = called([claim.higher]), called(claim.lower), claim.gap
        case Within():
            sides = called([claim.method]), called(claim.of), claim.points
        case SameBest():
            sides = called(claim.by), called(claim.of), claim.gap
        case CurveClaim():
            sides = tuple((p.method, p.measure, p.at is None) for p in claim.parts)
    return claim.kind, claim.says, sides


def test_what_a_small_file_claims_its_paper_size_claims_too() -> None:
    """So that a run of either is judged alike; paper/gpt2.yaml is beside all small files."""
    large = load_experiment(FOLDER / "paper" / "gpt2.yaml")
    there = {said(claim) for claim in large.report.claims}
    found: set[tuple[object, ...]] = set()
    for path in FOLDER.glob("*.yaml"):
        claims = load_experiment(path).report.claims
        assert claims, path.stem
        here = {said(claim) for claim in claims}
        assert {said_here[1] for said_here in here - there} <= ONLY_SMALL, path.stem
        found |= here
    assert there <= found
    assert len(there) == len(large.report.claims) >= 28


def test_of_24_blocks_every_one_is_alone_and_left_out_once() -> None:
    experiment = load_experiment(FOLDER / "paper" / "gpt2.yaml")
    every = set(range(1, 25))
    for k in every:
        for row, read in ((f"block {k} alone", {k}), (f"narrow, without block {k}", every - {k})):
            method = experiment.methods[row]
            assert isinstance(method, LayersMethod)
            arrays = method.latents.arrays(SIZES)
            assert {int(ArrayName.parse(array).index) for array in arrays} == read
    single = [f"block {k} alone" for k in sorted(every)]
    assert experiment.methods["MLP on the scores of single blocks"].read_methods == tuple(single)
    claims = {claim.says: claim for claim in experiment.report.claims}
    best = claims["notebooks: trained alone, the last block is the best"]
    assert best.methods == (single[-1], *single[:-1])
    dropped = claims["5.2: dropping any layer hurts"]
    assert dropped.methods == ("narrow", *(f"narrow, without block {k}" for k in sorted(every)))


def test_the_best_single_block_is_one_of_all_and_has_the_head_of_the_others() -> None:
    for name, prefix, n in (("layers", "", 6), ("paper/gpt2", "narrow, ", 24)):
        methods = load_experiment(FOLDER / f"{name}.yaml").methods
        best, last = (
            methods[f"{prefix}{row}"] for row in ("best block chosen on dev", "last block")
        )
        assert isinstance(best, LayersMethod)
        assert isinstance(last, LayersMethod)
        tried = [*best.candidates("pearson", 0).values()]
        assert [one.latents.layers for one in tried] == [str(k) for k in range(1, n + 1)]
        # Whose test scores by epoch are kept beside it, which changes no fit.
        alike = last.fit_config("pearson", 0).model_copy(update={"test_by_epoch": "none"})
        assert tried[-1].latents == last.latents
        assert {*map(str, (one.fit for one in tried))} == {str(alike)}


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
