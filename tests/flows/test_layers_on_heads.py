"""An MLP on the scores of heads that were trained alone: what it reads, its numbers, and what it refuses."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import permafrost
from permafrost.flows.pipeline import run_serially
from permafrost.stages.freeze import EncoderSizes, Unified, UnifiedHead, load_pair_fit
from permafrost.stages.freeze.pair_heads import cosines
from permafrost.stages.freeze.single_codes import single_codes
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from tests.flows.experiments import graded_task, rows_of, run_in, write
from tests.flows.looked import look
from tests.stages.extraction.tiny_models import save_model
from tests.stages.freeze.layer_reference import generator

pytestmark = pytest.mark.deep

SIZES = {"early": 6, "late": 6}


def experiment(folder: Path) -> dict[str, Any]:
    head = {"kind": "unified", "encoders": SIZES}
    single = {"kind": "layers", "head": head, "max_epochs": 2, "evaluate_every": 1, "loss": "mse"}
    return {
        "name": "on-singles",
        "backbone": {"source": str(save_model("gpt2", folder / "gpt2"))},
        "tasks": {"pairs": graded_task(folder, 40)},
        "methods": {
            "MLP": {"kind": "layers_on_heads", "heads": ["block 3", "block 1"], "max_epochs": 3},
            "block 1": {**single, "latents": {"layers": "1"}},
            "block 3": {**single, "latents": {"layers": "3"}},
            "pair head": {**single, "head": {"kind": "cosine_mlp"}},
        },
        "seeds": [2],
    }


def test_it_is_fitted_on_the_codes_of_the_heads(tmp_path: Path) -> None:
    path, home, result = run_in(tmp_path, experiment(tmp_path))
    assert {r["method"] for r in rows_of(result)} == {"MLP", "block 1", "block 3", "pair head"}
    dag = look(path, home)
    fits = dag.nodes.fits
    fit = fits["MLP", "pairs", 2]
    assert [i.ref for i in fit.inputs_named("single")] == [
        fits["block 3", "pairs", 2].id,
        fits["block 1", "pairs", 2].id,
    ]
    # Its predictions are those of its MLP on the cosines behind the scores of the two, in their order.
    mlp = load_pair_fit(dag.artifacts.open(fit.spec.ref)).head()
    scores: list[np.ndarray] = []
    for name in ("block 3", "block 1"):
        folder = dag.artifacts.open(dag.nodes.scores[name, "pairs", 2].spec.ref)
        scores.append(pq.read_table(folder / "predictions.parquet").to_pandas()["prediction"])
    standard = (torch.tensor(np.stack(scores, 1) * 2 - 1).float() - mlp.mean) / mlp.deviation
    expected = mlp.mlp(standard).squeeze(-1).sigmoid()
    folder = dag.artifacts.open(dag.nodes.scores["MLP", "pairs", 2].spec.ref)
    found = pq.read_table(folder / "predictions.parquet").to_pandas()["prediction"]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    assert read_json(folder / "metrics.json")["choice"]["epoch"] in (1, 2, 3)
    assert not run_serially(path, home).computed
    wider = run_serially(path, home, ["methods.MLP.hidden=16"])
    assert wider.computed == {"layers_on_heads": 1, "score": 1, "report": 1}
    # Its heads answer, but otherwise than it does.
    own = f"{re.escape(str(fit.spec.ref))} is a layers_on_heads artifact, .* can neither answer nor give"
    single = re.escape(str(fits["block 3", "pairs", 2].spec.ref))
    with pytest.raises(
        InputError, match=f"^{own}.* It reads {single}, which can, but gives its own"
    ):
        permafrost.predict(["ice"], ["snow"], head=fit.spec.ref, home=home, device="cpu")
    with pytest.raises(InputError, match=f"^{own}"):
        permafrost.open(home).encoder(fit.spec.ref, device="cpu")


@pytest.mark.parametrize(
    ("of_task", "own", "expected"),
    [
        (None, None, "pearson"),
        ("spearman", None, "spearman"),
        ("spearman", "pearson", "pearson"),
        ("spearman_pearson", None, "pearson"),  # which they cannot take
    ],
)
def test_the_metric_of_the_experiment_chooses_epochs_and_scores(
    tmp_path: Path, of_task: str | None, own: str | None, expected: str
) -> None:
    document = experiment(tmp_path)
    document["metrics"] = {} if of_task is None else {"pairs": of_task}
    if own is not None:
        for method in document["methods"].values():
            method["metric"] = own
    nodes = look(write(tmp_path / "e.yaml", document), tmp_path / "home").nodes
    for (method, _, _), fit in nodes.fits.items():
        assert fit.config.get("pairs", fit.config)["metric"] == expected, method
    for (method, _, _), score in nodes.scores.items():
        assert score.config.get("similarity", score.config)["metric"] == expected, method
    assert nodes.report.config["metrics"] == document["metrics"]


def test_narrow_codes_keep_their_cosines_beside_wide_ones() -> None:
    built = [
        UnifiedHead(encoders=EncoderSizes(early=w, late=w)).build(1, 8, generator(w)).eval()
        for w in (2, 6)
    ]
    heads = [head for head in built if isinstance(head, Unified)]
    latents = np.random.default_rng(0).normal(size=(300, 3, 8)).astype(np.float32)
    codes = single_codes(heads, latents, [[2], [0]])
    assert codes.shape == (300, 2, 6)
    for place, (head, layer) in enumerate(zip(heads, (2, 0), strict=True)):
        own = head.embed(torch.from_numpy(latents[:, [layer]])).detach()
        found = torch.from_numpy(codes[:, place])
        torch.testing.assert_close(cosines(found[:-1], found[1:]), cosines(own[:-1], own[1:]))


@pytest.mark.parametrize(
    ("heads", "says"),
    [
        (["block 1", "block 2"], "reads the method 'block 2'; there are MLP, block 1"),
        (["block 1", "block 3", "block 1"], "'block 1' is named twice; name different methods"),
        (["block 1", "MLP"], "'MLP' is of kind layers_on_heads; name methods of kind layers"),
        (["block 1", "pair head"], "'pair head' has a head of kind cosine_mlp, which has no code"),
        (["block 1"], "methods.MLP.heads"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, heads: list[str], says: str) -> None:
    content = experiment(tmp_path)
    content["methods"]["MLP"]["heads"] = heads
    with pytest.raises(InputError, match=re.escape(says)):
        look(write(tmp_path / "experiment.yaml", content), tmp_path / "home")
