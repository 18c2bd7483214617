"""Fits of heads with torch-geometric's layers: by seed, whatever runs beside them, and back from files."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from permafrost.stages.fit import Contrastive, FitConfig, OptimConfig, fit, load_head, to_tensors
from permafrost.stages.fit.candidates import candidates
from permafrost.stages.heads import GlotHead
from permafrost.stages.heads.graph.pyg_conv import PygConv
from permafrost.stages.heads.pyg_pool import PygPoolHead
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.synthetic_fit import make_data, make_pairs, same_fit

HEADS = {
    "gatv2 with dropout": GlotHead(
        conv=PygConv(name="GATv2Conv", args={"heads": 2, "dropout": 0.4}), hidden=8, tau=0.4
    ),
    "transformer on cosines": GlotHead(
        conv=PygConv(name="TransformerConv", args={"dropout": 0.2}, edges="cosine"),
        hidden=8,
        tau=0.4,
        jumping="max",
    ),
    "set2set": PygPoolHead(name="Set2Set", args={"processing_steps": 2}),
    "lstm": PygPoolHead(name="LSTMAggregation", args={"out_channels": 7}),
}


def _config(head, seed=3, **settings):
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=2, **settings)
    return FitConfig(head=head, optim=optim, seed=seed)


def _fit(config):
    return fit(config, make_data(n_train=48, n_dev=16, n_test=1), SilentProgress())


@pytest.mark.deep
def test_fits_side_by_side_in_threads_equal_fits_alone():
    configs = [_config(HEADS["gatv2 with dropout"], seed) for seed in range(4)]
    configs += [_config(head) for head in HEADS.values()]
    alone = [_fit(config) for config in configs]
    torch.manual_seed(11)
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(_fit, configs))
    assert torch.equal(state, torch.get_rng_state()), "the global generator was used"
    for one, other in zip(alone, together, strict=True):
        same_fit(one, other)
    assert alone[0].log != alone[1].log, "the seed counts"


def test_dropout_counts_and_ends_with_training():
    wet, dry = (
        GlotHead(conv=PygConv(name="GATv2Conv", args={"dropout": p}), hidden=8, tau=0.4)
        for p in (0.5, 0.0)
    )
    one, other = (_fit(_config(head)) for head in (wet, dry))
    assert one.log[0].loss != other.log[0].loss
    head = one.head()
    features = to_tensors(make_data().readers["hidden/6"].features, torch.device("cpu"))
    assert torch.equal(head.embed(*features), head.embed(*features))


@pytest.mark.parametrize("name", HEADS)
def test_a_saved_head_gives_the_same_vectors(name, tmp_path):
    result = _fit(_config(HEADS[name]))
    result.save(tmp_path)
    features = to_tensors(make_data().readers["hidden/6"].features, torch.device("cpu"))
    head, loaded = result.head(), load_head(tmp_path)
    assert loaded.config == head.config
    assert torch.equal(loaded.embed(*features), head.embed(*features))
    record = json.loads((tmp_path / "head.json").read_text())
    trained = [p for n, p in result.state.items() if n in dict(head.model.named_parameters())]
    assert record["n_parameters"] == sum(p.numel() for p in trained)
    assert record["n_pooling_parameters"] == record["n_parameters"] - 2 * (head.pooling.d_out + 1)


@pytest.mark.parametrize("name", HEADS)
def test_training_in_bfloat16_learns(name):
    result = _fit(_config(HEADS[name], precision="bfloat16"))
    assert result.log[-1].loss < result.log[0].loss


@pytest.mark.parametrize("name", ["GINConv", "AntiSymmetricConv"])
def test_layers_that_keep_numbers_beside_their_weights_train_in_bfloat16(name):
    head = GlotHead(conv=PygConv(name=name), hidden=8, tau=0.4)
    exact, rough = (_fit(_config(head, precision=p)) for p in ("float32", "bfloat16"))
    assert rough.log[0].loss != exact.log[0].loss
    assert rough.log[0].loss == pytest.approx(exact.log[0].loss, rel=0.05)


def test_a_layer_that_makes_float32_itself_is_refused_in_bfloat16():
    head = GlotHead(conv=PygConv(name="ClusterGCNConv"), hidden=8, tau=0.4)
    with pytest.raises(InputError, match=r"ClusterGCNConv.*optim.precision bfloat16.*float32"):
        _fit(_config(head, precision="bfloat16"))


def test_a_grid_ranges_over_classes_and_their_arguments():
    grid = {"head.conv.name": ("GATv2Conv", "GATConv"), "head.conv.args.heads": (1, 2)}
    found = list(candidates(_config(HEADS["gatv2 with dropout"]), grid).values())
    names = [(c.head.conv.name, c.head.conv.args["heads"]) for c in found]
    assert names == [("GATv2Conv", 1), ("GATConv", 1), ("GATv2Conv", 2), ("GATConv", 2)]
    assert found[0].choice()["head.conv.name"] == "GATv2Conv"


def test_an_aggregation_without_parameters_has_nothing_to_train_on_pairs_without_labels():
    config = FitConfig(
        head=PygPoolHead(name="SumAggregation"),
        optim=OptimConfig(max_epochs=1),
        loss=Contrastive(similarity="cosine", temperature=0.2),
        metric="mrr",
        seed=1,
    )
    with pytest.raises(InputError, match="nothing to train"):
        fit(config, make_pairs("unlabelled"), SilentProgress())
