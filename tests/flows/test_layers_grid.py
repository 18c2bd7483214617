"""A grid for heads on every layer: a fit for each candidate, and the best on dev in its own name."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import permafrost
from permafrost.flows.nodes.report_writing import report_cells
from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.stages.fit.choice import choose
from permafrost.stages.freeze import load_pair_fit
from permafrost.stages.freeze.config import PairFitConfig
from permafrost.stages.freeze.pair_candidates import pair_candidates
from permafrost.stages.freeze.pair_fit import PAIR_HEAD
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.learning import learning_curves
from permafrost.storage.artifacts import parse_ref
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from tests.flows.experiments import graded_task, run_in, write
from tests.flows.looked import look
from tests.flows.scored_answers import answers_as_scored
from tests.stages.extraction.tiny_models import save_model

GRID = {"head.encoders.late": [8, 12], "lr": [0.003, 1e-6]}
HEAD = {"kind": "autoencoder_siamese", "encoders": {"early": 8, "late": 8}, "hidden": 16}


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, PipelineResult]:
    folder = tmp_path_factory.mktemp("grid")
    training = {"kind": "layers", "max_epochs": 4, "evaluate_every": 2, "batch_size": 16}
    document: dict[str, Any] = {
        "name": "grid",
        "backbone": {"source": str(save_model("gpt2", folder / "gpt2"))},
        "tasks": {"pairs": graded_task(folder, 40)},
        "methods": {
            "chosen": {**training, "head": HEAD, "grid": GRID},
            "given": {**training, "head": HEAD, "lr": 0.003},
        },
        "seeds": [0, 1],
    }
    return run_in(tmp_path_factory.mktemp("run"), document)


@pytest.mark.deep
def test_every_candidate_is_a_fit_and_a_method_with_its_settings_shares_it(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    assert result.computed["fit"] == 8, "four candidates of two seeds; 'given' is one of them"
    assert result.computed["choose"] == 2
    wider = run_serially(path, home, ["methods.chosen.grid.lr=[0.003, 1e-6, 0.01]"])
    assert wider.computed["fit"] == 4, "two more candidates of two seeds"
    assert wider.computed["choose"] == 2


@pytest.mark.deep
def test_the_best_on_dev_is_kept_as_it_was_trained(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    for seed in (0, 1):
        node = dag.nodes.fits["chosen", "pairs", seed]
        folder = dag.artifacts.open(node.spec.ref)
        fits = [
            dag.artifacts.open(parse_ref(source.ref)) for source in node.inputs_named("candidate")
        ]
        best = [load_pair_fit(fit).best.dev_metric or -2.0 for fit in fits]
        number = best.index(max(best))
        assert read_json(folder / "pair_head.json")["candidate"] == number
        kept, trained = load_pair_fit(folder), load_pair_fit(fits[number])
        assert kept.config == trained.config
        assert kept.best == trained.best
        assert kept.history == trained.history
        assert all(torch.equal(kept.state[name], trained.state[name]) for name in trained.state)
        metrics = read_json(
            dag.artifacts.open(dag.nodes.scores["chosen", "pairs", seed].spec.ref) / "metrics.json"
        )
        assert metrics["dev"] == pytest.approx(max(best), abs=1e-6)
        assert metrics["choice"]["lr"] == kept.config.lr


@pytest.mark.deep
def test_a_choice_answers_pairs_and_the_report_draws_what_was_kept(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, _ = first_run
    dag, cell = look(path, home), ("chosen", "pairs", 1)
    head, scored = (n[cell].spec.ref for n in (dag.nodes.fits, dag.nodes.scores))
    assert head.stage == "choose"
    assert answers_as_scored(home, str(head), dag.artifacts.open(scored), dag.corpus("pairs")) == 1
    found = permafrost.predict(["ice"], ["snow"], head=str(head), home=home, device="cpu")
    assert isinstance(found, permafrost.PredictedScores)
    curves = learning_curves(read_results(report_cells(dag.nodes.report, dag.context)))
    runs = {curve.method: curve.runs for curve in curves}
    assert {run.n_candidates for run in runs["chosen"]} == {4}
    assert {run.n_epochs for run in runs["chosen"]} == {16}
    assert {run.n_candidates for run in runs["given"]} == {1}


@pytest.mark.deep
def test_dev_chooses_the_layers_that_a_head_reads(tmp_path: Path) -> None:
    """Candidates with encoders of one pretraining, a block each; the score reads the best one's."""
    head = {"kind": "unified", "encoders": {"early": 6, "late": 6}}
    single = {"kind": "layers", "head": head, "encoders": "all", "loss": "mse", "max_epochs": 2}
    document: dict[str, Any] = {
        "name": "layers-grid",
        "backbone": {"source": str(save_model("gpt2", tmp_path / "gpt2"))},
        "tasks": {"pairs": graded_task(tmp_path, 40)},
        "pretrainings": {
            "all": {
                "task": "pairs",
                "autoencoder": {"encoders": head["encoders"], "max_epochs": 1, "seed": 0},
            }
        },
        "methods": {
            "chosen": {**single, "grid": {"latents.layers": [1, "2", "3"]}},
            "block 2": {**single, "latents": {"layers": "2"}},
        },
        "seeds": [0],
    }
    path, home, result = run_in(tmp_path, document)
    assert result.computed["fit"] == 3, "block 2 is one of them"
    dag = look(path, home)
    node = dag.nodes.fits["chosen", "pairs", 0]
    fits = [dag.artifacts.open(parse_ref(i.ref)) for i in node.inputs_named("candidate")]
    best = [load_pair_fit(fit).best.dev_metric or -2.0 for fit in fits]
    score = dag.artifacts.open(dag.nodes.scores["chosen", "pairs", 0].spec.ref)
    metrics = read_json(score / "metrics.json")
    assert metrics["dev"] == pytest.approx(max(best), abs=1e-6)
    assert metrics["choice"]["layers"] == "123"[best.index(max(best))]
    # What answers outside of the experiment reads the same block.
    assert answers_as_scored(home, str(node.spec.ref), score, dag.corpus("pairs")) == 1


def on_gpt2(tmp_path: Path, methods: dict[str, dict[str, Any]]) -> Path:
    """An experiment file with heads on every layer of a small GPT-2, which has a final norm."""
    head = {"kind": "unified", "encoders": {"early": 6, "late": 6}}
    document: dict[str, Any] = {
        "name": "layers-grid",
        "backbone": {"source": str(save_model("gpt2", tmp_path / "gpt2"))},
        "tasks": {"pairs": graded_task(tmp_path, 40)},
        "methods": {name: {"kind": "layers", "head": head, **of} for name, of in methods.items()},
    }
    return write(tmp_path / "experiment.yaml", document)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"chosen.grid": "{latents.layers: ['9']}"},
            "methods.chosen: grid.latents.layers: hidden=9 was asked for, but this gpt2",
        ),
        ({"one.latents.layers": "3-2"}, "methods.one: latents.layers: hidden=3-2 was asked for"),
        ({"chosen.grid": "{latents.layers: [abc]}"}, "'abc' is not a layer; write all, half, last"),
        (
            {"one.latents.layers": "'1,'"},
            "methods.one.latents.layers: '' is not a layer; write all",
        ),
        ({"chosen.grid": "{latents.at: [last, mean]}"}, "grid tries latents.layers alone"),
        (
            {
                "chosen.grid": "{latents.layers: [1, 2]}",
                "on": "{kind: layers_on_heads, heads: [chosen, one]}",
            },
            "the grid of 'chosen' tries latents.layers",
        ),
    ],
)
def test_layers_that_a_grid_cannot_try_are_refused(
    tmp_path: Path, change: dict[str, str], says: str
) -> None:
    path = on_gpt2(tmp_path, {"chosen": {}, "one": {"latents": {"layers": "1"}}})
    with pytest.raises(InputError) as caught:
        look(
            path, tmp_path / "home", [f"methods.{field}={value}" for field, value in change.items()]
        )
    assert says in str(caught.value)


def test_names_of_the_same_layers_are_one_candidate(tmp_path: Path) -> None:
    layers = {"one": ["-1", 3, "3, 3"], "two": ["last", "-1", "3", "2-3", "2,3"]}
    methods = {name: {"grid": {"latents.layers": tried}} for name, tried in layers.items()}
    nodes = look(on_gpt2(tmp_path, methods), tmp_path / "home").nodes
    fitted = {name: nodes.fits[name, "pairs", 0] for name in ("one", "two")}
    assert fitted["one"].label.endswith("latents.layers -1"), "a fit, and no choice"
    assert len(fitted["two"].inputs_named("candidate")) == 3
    found = nodes.scores["two", "pairs", 0].run_facts["candidates"]
    assert [candidate["layers"] for candidate in found] == ["last", "-1", "2-3"]


def config(**fields: Any) -> PairFitConfig:
    return PairFitConfig.model_validate({"head": HEAD, "seed": 0, **fields})


def test_a_grid_may_try_any_field_also_one_that_is_not_written_at_its_default() -> None:
    grid = {"scale": ["none", "feature"], "head.encoders.middle": [None, [4, 4, 4]]}
    found = pair_candidates(config(), grid)
    assert [(c.scale, c.head.encoder_sizes.middle) for c in found.values()] == [  # pyright: ignore[reportOptionalMemberAccess]
        ("none", None),
        ("feature", None),
        ("none", (4, 4, 4)),
        ("feature", (4, 4, 4)),
    ]
    assert next(iter(found.values())) == config()
    assert pair_candidates(config(), {}) == {"": config()}


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"head.kind": ["siamese"]}, "one kind of head on every layer"),
        ({"lrr": [0.1]}, "'lrr', which a fit does not have; the nearest is 'lr'"),
        ({"lr": []}, "grid.lr has no values"),
        ({"lr": [-1]}, "lr=-1 is not valid at lr"),
        ({"labels": ["given", "shuffled"]}, "a control that dev may not choose"),
        ({"seed": [0, 1]}, "grid tries seed, and the luckiest on dev"),
        ({"metric": ["pearson", "spearman"]}, "numbers of different metrics cannot be compared"),
        ({"test_by_epoch": ["none", "kept"]}, "test_by_epoch, which changes no fit"),
    ],
)
def test_a_wrong_grid_is_refused(grid: dict[str, list[Any]], says: str) -> None:
    with pytest.raises(InputError) as caught:
        pair_candidates(config(), grid)
    assert says in str(caught.value)


def _fit(folder: Path, dev: float | None) -> Path:
    folder.mkdir()
    record = f'{{"config": {{}}, "best": {{"dev_metric": {"null" if dev is None else dev}}}}}'
    (folder / "pair_head.json").write_text(record)
    return folder


def test_candidates_without_a_metric_on_dev_come_last_and_equal_ones_in_order(
    tmp_path: Path,
) -> None:
    rng = random.Random(1)
    for values, wanted in (([None, -0.5, -0.5], 1), ([0.1, None, 0.3], 2), ([None, None], 0)):
        fits = [_fit(tmp_path / f"{rng.random()}", value) for value in values]
        choice = choose(fits, PAIR_HEAD)
        assert (choice.candidate, choice.dev_metric) == (wanted, values[wanted])


def test_a_fit_that_is_damaged_or_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no trained pair head"):
        choose([tmp_path], PAIR_HEAD)
    (tmp_path / "pair_head.json").write_text("[]")
    with pytest.raises(CorruptDataError, match="is damaged"):
        choose([tmp_path], PAIR_HEAD)
