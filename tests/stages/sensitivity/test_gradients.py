"""Sensitivities against Jacobians of transformers' own model in float64, and against finite differences."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.recipes import Encoded
from permafrost.stages.sensitivity import gradients as gradients_module
from permafrost.stages.sensitivity.gradients import output_directions, sensitivity
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import (
    embeddings,
    encoded,
    mean_row,
    prepended,
    resolved,
    rewired_run,
)
from tests.stages.extraction.rewired_runs import HTP, REWIRED
from tests.stages.extraction.tiny_models import D_MODEL, N_LAYERS, TEXTS

pytestmark = pytest.mark.deep

Pairs = Callable[[str], Pair]
ALL = output_directions(D_MODEL, None, 0)
FLOAT32 = 2e-4
"""Relative to the largest: float32 (eps 1.2e-7) through three blocks with wide weights and back."""


def in_float64(both: Pair) -> PreTrainedModel:
    folder = both.backbone.files.folder
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64)
    return cast(PreTrainedModel, model).eval()


def one_text(backbone: Backbone, text: str = TEXTS[1]) -> Encoded:
    return encoded(backbone, texts=(text,))


def readouts(states_TD: Tensor, at: int, span: np.ndarray) -> Tensor:
    """`[2, D]`: one token's state, and the mean of the span's."""
    return torch.stack([states_TD[at], states_TD[torch.from_numpy(span)].mean(0)])


def jacobian(outputs: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """`[n_outputs, D, T, D]` float64."""
    found = torch.autograd.functional.jacobian(outputs, inputs)
    return cast(Tensor, found)


def rms(jacobian_DTD: Tensor) -> np.ndarray:
    """|J_i|_F / sqrt(D) of every input position."""
    return (jacobian_DTD.square().sum((0, 2)) / D_MODEL).sqrt().numpy()


def close(ours: np.ndarray, theirs: np.ndarray, tolerance: float = FLOAT32) -> bool:
    return bool(np.abs(ours - theirs).max() <= tolerance * theirs.max())


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "model_type", ["llama", "gpt2", "gpt_neox", "gemma2", "mistral", "opt", "bert", "modernbert"]
)
def test_it_is_the_jacobian_of_transformers_own_model(pair: Pairs, model_type: str) -> None:
    """All directions, both readouts."""
    both = pair(model_type)
    model, batch = in_float64(both), one_text(both.backbone)
    ids = torch.from_numpy(batch.token_ids[0].astype(np.int64))[None]
    layer = cast(nn.Module, model.get_input_embeddings())
    inputs = layer(ids).detach()[0]
    at = -1 if both.backbone.sizes.is_decoder else 0
    theirs = jacobian(
        lambda x: readouts(model(inputs_embeds=x[None]).last_hidden_state[0], at, batch.span[0]),
        inputs,
    )
    index = "final" if both.backbone.sizes.has_final_norm else N_LAYERS
    recipe = resolved(both.backbone, "plain")
    ours = sensitivity(both.backbone, batch, recipe, index, ("readout", "mean"), ALL)
    assert close(ours["readout"], rms(theirs[0]))
    assert close(ours["mean"], rms(theirs[1]))


def test_it_is_a_limit_of_differences(pair: Pairs) -> None:
    """Central differences in float64, at a block in the middle, of GPT-2: the norms of the other families
    compute in float32 whatever the model's dtype is. Their error is of the order of 1e-8."""
    both = pair("gpt2")
    model, batch = in_float64(both), one_text(both.backbone, "ice")
    ids = torch.from_numpy(batch.token_ids[0].astype(np.int64))[None]
    inputs = cast(nn.Module, model.get_input_embeddings())(ids).detach()

    def state(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(inputs_embeds=x, output_hidden_states=True).hidden_states[2][0, -1]

    step = 1e-5
    expected = []
    for i in range(ids.shape[1]):
        columns = []
        for d in range(D_MODEL):
            moved = torch.zeros_like(inputs)
            moved[0, i, d] = step
            columns.append((state(inputs + moved) - state(inputs - moved)) / (2 * step))
        expected.append(float(torch.stack(columns).square().sum() / D_MODEL) ** 0.5)
    recipe = resolved(both.backbone, "plain")
    ours = sensitivity(both.backbone, batch, recipe, 2, ("readout",), ALL)
    assert close(ours["readout"], np.array(expected))


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox"])
def test_copies_of_a_rewiring_are_differentiated_through(pair: Pairs, model_type: str) -> None:
    """Hierarchical token prepending, with the tests' own copies in transformers' model; relation 33: the
    first sentence depends on later ones."""
    both = pair(model_type)
    model = in_float64(both)
    batch = prepended(both.backbone, TEXTS[1:2], size=8)
    assert batch.copies is not None
    row = mean_row(both.reference).double()
    inputs = embeddings(model, batch.token_ids[0], {-1: row, -2: row}).detach()

    def outputs(x: Tensor) -> Tensor:
        assert batch.copies is not None
        found = rewired_run(both, x, batch.copies[0], REWIRED, model=model)
        return readouts(found.final, -1, batch.span[0])

    theirs = jacobian(outputs, inputs)
    recipe = resolved(both.backbone, HTP)
    ours = sensitivity(both.backbone, batch, recipe, "final", ("readout", "mean"), ALL)
    assert close(ours["readout"], rms(theirs[0]))
    assert close(ours["mean"], rms(theirs[1]))


def test_the_number_of_copies_at_a_time_does_not_matter(
    pair: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = pair("llama")
    arguments: tuple[Any, ...] = (
        *(both.backbone, one_text(both.backbone), resolved(both.backbone, "plain")),
        *("final", ("mean",), ALL),
    )
    whole = sensitivity(*arguments)["mean"]
    monkeypatch.setattr(gradients_module, "BATCH_TOKENS", 1)
    assert close(sensitivity(*arguments)["mean"], whole)


def test_random_directions_are_unbiased(pair: Pairs) -> None:
    """Hutchinson: with random signs the variance of s^T A s is at most 2 |A|_F^2, for A = J_i J_i^T. The mean
    of 4,096 lies within five standard errors."""
    both = pair("llama")
    batch, recipe = one_text(both.backbone, "ice"), resolved(both.backbone, "plain")
    n = 4096
    random = output_directions(D_MODEL, n, 3)
    assert set(random.unique().tolist()) == {-1.0, 1.0}
    exact, estimated = (
        sensitivity(both.backbone, batch, recipe, "final", ("readout",), directions)["readout"]
        for directions in (ALL, random)
    )
    model = in_float64(both)
    ids = torch.from_numpy(batch.token_ids[0].astype(np.int64))[None]
    inputs = cast(nn.Module, model.get_input_embeddings())(ids).detach()[0]
    (whole,) = jacobian(lambda x: model(inputs_embeds=x[None]).last_hidden_state[0, -1:], inputs)
    for i in range(ids.shape[1]):
        square = whole[:, i] @ whole[:, i].T
        error = 5 * (2 / n) ** 0.5 * float(square.norm()) / D_MODEL
        assert abs(estimated[i] ** 2 - exact[i] ** 2) <= error
    assert not np.array_equal(estimated, exact)


def test_the_embedding_itself_has_sensitivity_one(pair: Pairs) -> None:
    """At layer 0 the readout is its own input, and the mean of n tokens depends on each by 1 / n."""
    both = pair("llama")
    batch, recipe = one_text(both.backbone), resolved(both.backbone, "plain")
    ours = sensitivity(both.backbone, batch, recipe, 0, ("readout", "mean"), ALL)
    n = len(batch.token_ids[0])
    assert ours["readout"] == pytest.approx(np.eye(n)[-1], abs=1e-6)
    assert ours["mean"] == pytest.approx(np.full(n, 1 / n), abs=1e-6)


def test_nothing_of_the_backbone_gets_a_gradient(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    before = {n: p.clone() for n, p in cast(nn.Module, backbone.model).named_parameters()}
    recipe = resolved(backbone, "plain")
    sensitivity(backbone, one_text(backbone), recipe, "final", ("readout",), ALL)
    for name, parameter in cast(nn.Module, backbone.model).named_parameters():
        assert parameter.grad is None
        assert not parameter.requires_grad
        assert torch.equal(parameter, before[name])
