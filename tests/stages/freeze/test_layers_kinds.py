"""A head on all layers, and its loss, are one file, ours or a user's."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from permafrost.flows.methods.layers import FitLayers, LayersMethod
from permafrost.flows.stage import code_of
from permafrost.stages import plugins
from permafrost.stages.freeze import (
    LAYERS_HEADS,
    PAIR_LOSSES,
    AutoencoderConfig,
    EncoderSizes,
    LayerAutoencoders,
    PairFitConfig,
    heads_with_vectors,
    load_pair_fit,
    places_of,
    require_encoders,
)
from permafrost.stages.freeze.fit_pairs import fit_pairs
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.freeze.layer_reference import generator
from tests.stages.freeze.planted_pairs import D_MODEL, N_LAYERS, make_latents, make_pairs

MEAN_LAYER = """
from typing import Literal

from permafrost.stages.freeze.layers_head import LayersHead, PairHead, cosines
from permafrost.stages.freeze.losses import PairLoss
from permafrost.stages.heads.initialise import linear


class MeanLayerHead(LayersHead):
    kind: Literal["mean_layer"] = "mean_layer"
    width: int = 4

    def build(self, n_layers, d_model, generator):
        return MeanLayer(d_model, self.width, generator)


class MeanLayer(PairHead):
    def __init__(self, d_model, width, generator):
        super().__init__()
        self.linear = linear(d_model, width, generator)

    def codes(self, x):
        return [self.linear(x.mean(dim=1))]

    def forward(self, a, b):
        return ((1 + cosines(self.codes(a)[0], self.codes(b)[0])) / 2).clamp(0, 1)


class AbsoluteLoss(PairLoss):
    kind: Literal["absolute"] = "absolute"
    scale: float = 1.0

    def of(self, predicted, gold):
        return self.scale * (predicted - gold).abs().mean()
"""
AUTOENCODERS = LayerAutoencoders(EncoderSizes(early=2, late=2), N_LAYERS, D_MODEL, generator())
LATENTS, TOPICS = make_latents(120)
TRAIN, DEV = make_pairs(TOPICS, range(80), 64, 1), make_pairs(TOPICS, range(80, 120), 32, 2)


@pytest.fixture
def mean_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    path = tmp_path / "mean_layer.py"
    path.write_text(MEAN_LAYER)
    plugins.use_files([path])
    return path


def _config(**fields: object) -> PairFitConfig:
    given = {"head": {"kind": "mean_layer"}, "lr": 1e-2, "batch_size": 16, "max_epochs": 4}
    return PairFitConfig.model_validate(
        {**given, "loss": {"kind": "absolute"}, "seed": 0, "evaluate_every": 1, **fields}
    )


@pytest.mark.usefixtures("mean_layer")
def test_a_head_and_a_loss_from_one_file_train_and_are_read_again(tmp_path: Path) -> None:
    result = fit_pairs(_config(), LATENTS, TRAIN, DEV, None, SilentProgress())
    assert result.history[-1].train_loss < result.history[0].train_loss
    twice = _config(loss={"kind": "absolute", "scale": 2.0})
    other = fit_pairs(twice, LATENTS, TRAIN, DEV, None, SilentProgress())
    assert other.log[0].loss == pytest.approx(2 * result.log[0].loss), "its fields reach it"
    result.save(tmp_path)
    loaded = load_pair_fit(tmp_path)
    assert loaded.config.head.model_dump() == {"kind": "mean_layer", "width": 4}
    for name, value in loaded.head().state_dict().items():
        assert np.array_equal(value, result.state[name])


@pytest.mark.usefixtures("mean_layer")
def test_what_a_head_can_do_is_asked_of_it() -> None:
    head, arrays = _config().head, _arrays([1, 2, 3, 4])
    with pytest.raises(InputError, match="use autoencoder_siamese, unified or unified_projection"):
        require_encoders(_config(), arrays, AutoencoderConfig(seed=0), arrays)
    method = LayersMethod.model_validate({"head": {"kind": "mean_layer"}})
    assert "only 'unified' and 'unified_projection' have" in (method.without_vector() or "")
    assert heads_with_vectors() == "'unified' and 'unified_projection'"
    for kind in ("unified", "unified_projection"):
        assert LayersMethod.model_validate({"head": {"kind": kind}}).without_vector() is None
    with pytest.raises(InputError, match="given to a head that has none"):
        head.build(N_LAYERS, D_MODEL, generator()).load_encoders(AUTOENCODERS)


@pytest.mark.parametrize(
    ("written", "instead", "told"),
    [
        ("(0, 1)", "(0, 1)[:, None]", r"MeanLayer gave shape \[16, 1\] for 16 pairs"),
        ("(0, 1)", "(0, 1).detach()", r"MeanLayer gave similarities without a gradient"),
        (".abs().mean()", ".abs()", r"AbsoluteLoss.of gave shape \[16\]; return one number"),
        (
            "return MeanLayer(",
            "return lambda *_: (",
            r"MeanLayerHead.build gave function, which is",
        ),
    ],
)
def test_what_plugins_give_is_one_number_per_pair_and_per_batch(
    mean_layer: Path, written: str, instead: str, told: str
) -> None:
    assert written in MEAN_LAYER
    mean_layer.write_text(MEAN_LAYER.replace(written, instead))
    plugins.use_files([mean_layer])
    with pytest.raises(InputError, match=told):
        fit_pairs(_config(), LATENTS, TRAIN, DEV, None, SilentProgress())


def test_a_loss_without_settings_may_be_its_name_alone_and_is_written_so() -> None:
    method = LayersMethod.model_validate({"head": {"kind": "siamese"}, "loss": "mse"})
    assert method.loss == PAIR_LOSSES.validate({"kind": "mse"})
    assert method.model_dump(mode="json")["loss"] == "mse"
    assert method.loss_on("similarity") == "mse"
    assert LayersMethod.model_validate({"head": {"kind": "siamese"}}).loss.kind == "log_variance"
    with pytest.raises(ValidationError, match=r"'mae' found.*'mse', 'log_variance'"):
        LayersMethod.model_validate({"head": {"kind": "siamese"}, "loss": "mae"})


def test_a_fit_depends_on_the_code_of_its_own_head_only() -> None:
    def files(*entries: type) -> set[str]:
        return {name.partition(":")[0].rpartition(".")[2] for name in code_of(FitLayers, *entries)}

    kinds = set(LAYERS_HEADS.kinds())
    assert kinds >= {"cosine_mlp", "siamese", "autoencoder_siamese", "unified"}
    assert not files() & kinds
    for name, kind in LAYERS_HEADS.kinds().items():
        assert files(kind) & kinds == {name}


def test_a_head_starts_from_the_encoders_of_the_layers_that_it_reads() -> None:
    def check(head: dict[str, object], layers: list[int], **pretrained: object) -> None:
        encoders = {"early": 3, "late": 5}
        of_all = AutoencoderConfig.model_validate({"encoders": encoders, **pretrained, "seed": 0})
        kind = {"kind": "autoencoder_siamese", "encoders": head}
        own, theirs = _arrays(layers), _arrays([1, 2, 3, 4])
        require_encoders(_config(head=kind, loss="mse"), own, of_all, theirs)

    assert places_of(_arrays([2, 4]), _arrays([1, 2, 4])) == (1, 2)
    check({"early": 3, "late": 5}, [1, 2, 3, 4])
    check({"early": 5, "late": 5}, [3, 4])
    check({"widths": [3, 5, 5]}, [1, 3, 4])
    with pytest.raises(InputError, match=r"of its layers: widths: \[3, 5, 5\]"):
        check({"early": 3, "late": 5, "widths": [3, 3, 5]}, [1, 3, 4])
    with pytest.raises(
        InputError, match=r"_last/5, for which there is no pretrained encoder \(there"
    ):
        check({"early": 5, "late": 5}, [4, 5])
    with pytest.raises(InputError, match="hidden_mean/2, for which there is no"):
        places_of(["pooled/hidden_mean/2"], _arrays([1, 2]))
    with pytest.raises(InputError, match=r"scale none, but .* with scale centred"):
        check({"early": 3, "late": 5}, [1, 2, 3, 4], scale="centred")
    with pytest.raises(InputError, match="do not fit the head's"):
        check({"early": 3, "late": 5, "activation": "silu"}, [1, 2, 3, 4])


def _arrays(layers: list[int]) -> list[str]:
    return [f"pooled/hidden_last/{layer}" for layer in layers]
