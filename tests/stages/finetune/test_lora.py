"""LoRA on every family: what gets adapters, what they change, what they draw, and how they are saved."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    BertConfig,
    MistralConfig,
)

from permafrost.stages.extraction.backbone import Backbone, BackboneFiles, load_backbone
from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.finetune import adapters, by_length
from permafrost.stages.finetune.backbone_pass import read_states
from permafrost.stages.finetune.config import FinetuneConfig, FinetuneScoreConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import build_module, finetune
from permafrost.stages.finetune.trained import BACKBONE, FinetuneResult, load_finetuned
from permafrost.stages.finetune.trainee import GraphTextTrainee
from permafrost.stages.finetune.tunings.full import Full
from permafrost.stages.finetune.tunings.lora import Lora
from permafrost.stages.heads.directed_draws import DirectedDraws
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import close, encoded, resolved
from tests.stages.extraction.tiny_models import N_LAYERS
from tests.stages.finetune.conftest import Own
from tests.stages.finetune.graph_text_fits import WITHOUT_DROPOUT, same_direction
from tests.stages.finetune.small_lora import (
    COUNTS,
    built,
    drawn,
    filled,
    n_adapters,
    n_trained,
)
from tests.stages.finetune.stopping import Stopped, Stopping
from tests.stages.finetune.tiny_graphs import config_of, data_of, pairs

Pairs = Callable[[str], Pair]
Stored = Callable[[str], FinetuneData]
GT2VEC: dict[str, object] = {"kind": "gt2vec"}
TEXT: dict[str, object] = {"kind": "text_only"}
LORA: dict[str, object] = {"kind": "lora", "r": 2, "alpha": 4, "dropout": 0.3}


@pytest.fixture(scope="module")
def stored(pair: Pairs) -> Stored:
    """What a store holds of one corpus by a family."""
    return cache(lambda family: data_of(pairs(), pair(family).backbone))


@pytest.mark.deep
def test_adapters_have_the_papers_number_of_parameters() -> None:
    # Relation 63: GT2VEC's rank 8 on q, k, v, o, gate, up and down, which are the defaults.
    defaults = Lora()
    assert (defaults.r, defaults.alpha, defaults.dropout) == (8, 16, 0.05)
    assert n_adapters(MistralConfig()) == 20_971_520
    # GLOT's rank 64.
    assert n_adapters(MistralConfig(), r=64, alpha=64) == 167_772_160 == 8 * 20_971_520
    in_blocks = n_adapters(BertConfig(), r=64, alpha=64)
    assert in_blocks == 10_616_832
    # The paper adapts the pooler too, which no readout of ours runs.
    pooler = built(BertConfig()).model.get_submodule("pooler.dense")
    assert isinstance(pooler, torch.nn.Linear)
    assert in_blocks + 64 * (pooler.in_features + pooler.out_features) == 10_715_136


def test_backbones_have_the_papers_number_of_parameters() -> None:
    assert n_trained(Full().attach(built(MistralConfig()), drawn())) == 7_110_660_096
    assert n_trained(Full().attach(built(BertConfig()), drawn())) == 109_482_240
    # As we load it, without the pooler.
    loaded = built(BertConfig(), **FAMILIES["bert"].load_options)
    assert n_trained(Full().attach(loaded, drawn())) == 109_482_240 - 768 * 768 - 768


def test_every_family_is_counted() -> None:
    assert COUNTS.keys() == FAMILIES.keys()


@pytest.mark.few(4)
@pytest.mark.parametrize("family", COUNTS)
def test_adapters_are_where_the_roles_say_and_start_as_the_base(
    own: Own, pair: Pairs, family: str
) -> None:
    backbone, shared = own(family), pair(family).backbone
    batch, recipe = encoded(backbone), resolved(backbone, "plain")
    before = {n: w.clone() for n, w in shared.model.state_dict().items()}
    tuned = Lora(r=2, alpha=4).attach(backbone, drawn())
    parts = Lora(targets="attention").layers(backbone.family)
    found = {"attention": 0, "feed_forward": 0}
    for name, weight in tuned.weights.items():
        layer = name.rpartition("/lora_")[0].replace("/", ".")
        found["attention" if layer.endswith(parts) else "feed_forward"] += weight.numel()
    assert tuple(found.values()) == COUNTS[family]
    base = read_states(shared, batch, recipe, "last")
    assert torch.equal(read_states(backbone, batch, recipe, "last"), base), "bitwise"
    tuned.train()
    with tuned.drawing():
        again = read_states(backbone, batch, recipe, "last")
    assert torch.equal(again, base), "dropout of what is multiplied by zero"
    filled(tuned)
    tuned.eval()
    z = read_states(backbone, batch, recipe, "last")
    assert not close(z.detach(), base)
    z.square().sum().backward()
    trained = {id(p) for p in tuned.parameters()}
    for weight in backbone.model.parameters():
        if id(weight) in trained:
            assert weight.grad is not None
            assert weight.grad.abs().sum() > 0
        else:
            assert not weight.requires_grad
            assert weight.grad is None
    assert torch.equal(read_states(shared, batch, recipe, "last"), base), "nobody else's"
    mine = backbone.model.state_dict()
    for name, weight in before.items():
        kept = next((n for n in (name, _based(name)) if n in mine), None)
        assert kept is not None
        assert torch.equal(mine[kept], weight)


def _based(name: str) -> str:
    """Where peft keeps the layer itself."""
    layer, _, what = name.rpartition(".")
    return f"{layer}.base_layer.{what}"


@pytest.mark.parametrize("family", ["bert", "gpt2", "mpnet", "phi3"])
def test_saved_adapters_are_pefts_own_and_merge_to_rounding(
    own: Own, pair: Pairs, tmp_path: Path, family: str
) -> None:
    backbone = own(family)
    batch, recipe = encoded(backbone, texts=("snow melts",)), resolved(backbone, "plain")
    tuned = Lora(r=2, alpha=4).attach(backbone, drawn())
    filled(tuned)
    tuned.eval()
    names = [name.replace("/", ".") for name in tuned.weights]
    tuned.save(tmp_path, dict(zip(names, tuned.weights.values(), strict=True)))
    assert {p.name for p in tmp_path.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert str(tmp_path.parent) not in (tmp_path / "adapter_config.json").read_text()
    assert Lora().load(tmp_path).keys() == set(names)
    z = read_states(backbone, batch, recipe, "last").detach()
    ids = torch.from_numpy(batch.token_ids.data.astype(np.int64))[None]
    base = AutoModel.from_pretrained(backbone.files.folder)
    theirs = peft.PeftModel.from_pretrained(base, str(tmp_path)).eval()
    with torch.no_grad():
        assert close(z, theirs(input_ids=ids).last_hidden_state[:, -1])
        merged = theirs.merge_and_unload()  # type: ignore[operator]
        found = merged(input_ids=ids).last_hidden_state[:, -1]
    assert close(z, found)
    assert not close(found, read_states(pair(family).backbone, batch, recipe, "last"))


def lora_config(
    data: FinetuneData, model: dict[str, object] = GT2VEC, **changes: object
) -> FinetuneConfig:
    return config_of(data.corpus, model, **{"train": LORA, **changes})


def fit(config: FinetuneConfig, data: FinetuneData, **options: Any) -> FinetuneResult:
    return finetune(config, data, SilentProgress(), **options)


def with_backbone(data: FinetuneData, backbone: Backbone) -> FinetuneData:
    """What is stored, with a backbone of its own."""
    assert data.live is not None
    return replace(data, live=replace(data.live, backbone=backbone))


def equal(one: FinetuneResult, other: FinetuneResult) -> bool:
    assert one.state.keys() == other.state.keys()
    same = all(torch.equal(one.state[k], other.state[k]) for k in one.state)
    return same and one.history == other.history and one.aligned == other.aligned


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("llama", GT2VEC),
        pytest.param("bert", TEXT, marks=pytest.mark.deep),
        pytest.param("gpt2", {**TEXT, "of": "description"}, marks=pytest.mark.deep),
        pytest.param("bert", {"kind": "qa_gnn"}, marks=pytest.mark.deep),
    ],
)
def test_a_tuned_model_is_trained_saved_and_scored(
    own: Own, stored: Stored, tmp_path: Path, family: str, model: dict[str, object]
) -> None:
    data = stored(family)
    config = lora_config(data, model)
    result = fit(config, with_backbone(data, own(family)))
    moved = [k for k in result.state if "lora_B" in k and result.state[k].abs().sum() > 0]
    assert moved, "adapters are trained"
    assert result.n_parameters >= sum(result.state[k].numel() for k in result.state if "lora" in k)
    torch.manual_seed(17)
    assert equal(fit(config, with_backbone(data, own(family))), result), "the seed alone decides"
    other = fit(config.model_copy(update={"seed": 2}), with_backbone(data, own(family)))
    assert not equal(other, result)
    result.save(tmp_path)
    loaded = load_finetuned(tmp_path)
    assert loaded.state.keys() == result.state.keys()
    assert all(torch.equal(loaded.state[k], result.state[k]) for k in result.state)
    assert loaded.choice["train.r"] == 2
    scored = score_finetuned(FinetuneScoreConfig(), loaded, with_backbone(data, own(family)))
    assert scored.metrics["dev"] == result.best.dev_metric
    assert scored.metrics["n_parameters"] == result.n_parameters
    (tmp_path / BACKBONE / "adapter_model.safetensors").write_bytes(b"{}")
    with pytest.raises(CorruptDataError, match="is damaged"):
        load_finetuned(tmp_path)


def test_scoring_does_not_run_the_second_branch(own: Own, stored: Stored) -> None:
    data = with_backbone(stored("llama"), own("llama"))
    config = lora_config(data)
    trainee = GraphTextTrainee(config, data, build_module(config, data), torch.device("cpu"))
    trainee.model.eval()
    read: list[int] = []
    assert data.live is not None
    block = data.live.backbone.family.block_list(data.live.backbone.model)[0]
    handle = block.register_forward_pre_hook(
        lambda _, args: read.append(args[0].shape[0] * args[0].shape[1])
    )
    items = np.arange(5)
    one = trainee.embeddings(items)
    alone = sum(read)
    both = trainee.embeddings(items, described=True)
    handle.remove()
    assert one.described is None
    assert both.described is not None
    assert torch.equal(one.z, both.z)
    assert sum(read) > 2 * alone > 0


def test_a_probe_begins_with_the_same_model(own: Own, stored: Stored) -> None:
    data = stored("bert")
    probe = build_module(config_of(data.corpus, GT2VEC), data)
    assert probe.tuned is None
    tuned = build_module(lora_config(data), with_backbone(data, own("bert"))).state_dict()
    assert all(torch.equal(tuned[k], w) for k, w in probe.state_dict().items())


def test_fits_side_by_side_are_what_each_is_alone(own: Own, stored: Stored) -> None:
    data = stored("bert")
    configs = [lora_config(data, TEXT, seed=seed) for seed in (1, 2)]
    alone = [fit(config, with_backbone(data, own("bert"))) for config in configs]
    found: dict[int, FinetuneResult] = {}
    backbones = [own("bert") for _ in configs]

    def work(number: int) -> None:
        found[number] = fit(configs[number], with_backbone(data, backbones[number]))

    before = torch.get_rng_state()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(configs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(equal(found[n], alone[n]) for n in range(len(configs)))
    assert torch.equal(torch.get_rng_state(), before), "of all threads: not drawn from"


@pytest.mark.deep
def test_a_stopped_fit_draws_on_as_it_would_have(own: Own, stored: Stored, tmp_path: Path) -> None:
    data = stored("llama")
    config, file = lora_config(data), tmp_path / "fit.pt"
    with pytest.raises(Stopped):
        # The first of the second epoch's three steps.
        finetune(config, with_backbone(data, own("llama")), Stopping(4), checkpoint=file)
    assert file.exists()
    again = fit(config, with_backbone(data, own("llama")), checkpoint=file)
    assert equal(again, fit(config, with_backbone(data, own("llama"))))


def tuned_gradients(
    data: FinetuneData, backbone: Backbone, model: dict[str, object], **changes: Any
) -> dict[str, Tensor]:
    """Of one batch, with adapters that are not zero."""
    config, own_data = lora_config(data, model, **changes), with_backbone(data, backbone)
    trained = GraphTextTrainee(
        config, own_data, build_module(config, own_data), torch.device("cpu")
    )
    assert trained.model.tuned is not None
    filled(trained.model.tuned)
    trained.model.train()
    trained.gradients(trained.batches(1)[0], lambda _: None)
    named = trained.model.named_parameters()
    found = {name: p.grad for name, p in named if p.grad is not None}
    assert sum("lora" in name for name in found) == len(trained.model.tuned.weights)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "bert", "mpnet"])
def test_recomputed_blocks_draw_what_they_drew(own: Own, stored: Stored, family: str) -> None:
    data = stored(family)
    optim = {"activations": "recomputed"}
    kept = tuned_gradients(data, own(family), GT2VEC)
    assert same_direction(tuned_gradients(data, own(family), GT2VEC, optim=optim), kept)
    silent = {**LORA, "dropout": 0.0}
    assert not same_direction(tuned_gradients(data, own(family), GT2VEC, train=silent), kept)


def test_a_batch_in_parts_has_the_gradients_of_the_whole(own: Own, stored: Stored) -> None:
    data = stored("llama")
    model, silent = {**GT2VEC, **WITHOUT_DROPOUT}, {**LORA, "dropout": 0.0}
    whole = tuned_gradients(data, own("llama"), model, train=silent)
    optim = {"at_a_time": 3, "activations": "recomputed"}
    parts = tuned_gradients(data, own("llama"), model, train=silent, optim=optim)
    assert same_direction(parts, whole)


def test_parts_draw_the_same_numbers_in_both_passes(own: Own, stored: Stored) -> None:
    backbone, data = own("bert"), stored("bert")
    seen: list[Tensor] = []
    block = backbone.family.block_list(backbone.model)[-2]
    handle = block.register_forward_hook(lambda m, args, output: seen.append(output.detach()))
    tuned_gradients(data, backbone, TEXT, optim={"at_a_time": 2})
    handle.remove()
    assert len(seen) == 4, "two parts, twice"
    assert all(torch.equal(seen[n], seen[n + 2]) for n in range(2))


def test_each_pass_of_a_batch_draws_its_own_numbers(
    own: Own, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(by_length.PASS_TOKENS, "cpu", 0)
    backbone, data = own("llama"), stored("llama")
    generators: list[int] = []
    directed = adapters.DirectedDraws

    def counted(generator: torch.Generator) -> DirectedDraws:
        generators.append(generator.initial_seed())
        return directed(generator)

    monkeypatch.setattr(adapters, "DirectedDraws", counted)
    passes: list[int] = []
    block = backbone.family.block_list(backbone.model)[0]
    handle = block.register_forward_pre_hook(lambda *_: passes.append(1))
    tuned_gradients(data, backbone, TEXT)
    handle.remove()
    assert len(passes) > 1
    # One for the construction, and one for each block of each pass.
    assert len(set(generators)) == len(generators) == 1 + N_LAYERS * len(passes)


def test_low_precision_is_for_training_only(own: Own, stored: Stored) -> None:
    data = stored("llama")
    model, silent = {**GT2VEC, **WITHOUT_DROPOUT}, {**LORA, "dropout": 0.0}
    full = tuned_gradients(data, own("llama"), model, train=silent)
    low = tuned_gradients(data, own("llama"), model, train=silent, optim={"precision": "bfloat16"})
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in low.values())
    assert not same_direction(low, full)


def test_a_backbone_in_half_precision_has_adapters_in_full(
    tiny_files: Callable[[str], BackboneFiles],
) -> None:
    backbone = load_backbone(tiny_files("llama"), "bfloat16", "cpu")
    batch, recipe = encoded(backbone), resolved(backbone, "plain")
    base = read_states(backbone, batch, recipe, "last")
    tuned = Lora(r=2).attach(backbone, drawn())
    assert all(w.dtype == torch.float32 for w in tuned.parameters())
    assert torch.equal(read_states(backbone, batch, recipe, "last"), base)


def test_what_reads_nothing_of_the_backbone_has_nothing_to_tune(stored: Stored) -> None:
    data = stored("bert")
    with pytest.raises(ValueError, match=r"train is lora, but .* gnn_only .* set train: probe"):
        lora_config(data, {"kind": "gnn_only"})
    assert config_of(data.corpus, TEXT, train="probe").train.kind == "probe"
