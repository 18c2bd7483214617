"""Embeddings from a store against what transformers computes, seen by hooks, one text at a time."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from permafrost.stages.embed import EmbedConfig, StoredFeatures, embed
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.storage.errors import NotFoundError
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.tiny_models import N_LAYERS, each_family, save_model

assert_close = partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5)
"""Both in float32: sums over heads and tokens of numbers up to about 10 in another order, through three
blocks; the same as the tests of the forward pass."""
QUIET = SilentProgress()
TEXTS = ("snow melts", "the deep lake freezes", "a warm wind, never cold", "ice")
"""Longer than the sliding windows, yet never cut, in a prompt either."""

OUTPUT_PROJECTIONS = {
    "bert": "encoder.layer.{}.attention.output.dense",
    "mpnet": "encoder.layer.{}.attention.attn.o",
    "modernbert": "layers.{}.attn.Wo",
    "gpt2": "h.{}.attn.c_proj",
    "opt": "decoder.layers.{}.self_attn.out_proj",
    "llama": "layers.{}.self_attn.o_proj",
    "qwen3": "layers.{}.self_attn.o_proj",
    "gemma2": "layers.{}.self_attn.o_proj",
}
"""Module of block {} (from 0). The last three share values between heads; the others but ModernBERT have a
bias, and so has Llama."""
VALUE_PROJECTIONS = {
    "bert": "encoder.layer.{}.attention.self.value",
    "mpnet": "encoder.layer.{}.attention.attn.v",
    "llama": "layers.{}.self_attn.v_proj",
}


class Reference:
    """transformers' own forward pass with eager attention, one unpadded text at a time."""

    def __init__(self, model_type: str, folder: Path) -> None:
        self.model_type = model_type
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.readout = 0 if "bert" in model_type or model_type == "mpnet" else -1

    def seen(self, names: dict[str, str]) -> dict[str, list[list[tuple[np.ndarray, np.ndarray]]]]:
        """name -> block -> text -> input and output `[n_tokens, width]` of the module of that name."""
        kept: dict[str, list[list[tuple[np.ndarray, np.ndarray]]]] = {
            name: [[] for _ in range(N_LAYERS)] for name in names
        }

        def keeper(target: list[tuple[np.ndarray, np.ndarray]]) -> Callable[..., None]:
            return lambda _, given, out: target.append((given[0][0].numpy(), out[0].numpy()))

        handles = [
            self.model.get_submodule(pattern.format(k)).register_forward_hook(keeper(kept[name][k]))
            for name, pattern in names.items()
            for k in range(N_LAYERS)
        ]
        with torch.inference_mode():
            for text in TEXTS:
                self.model(input_ids=torch.tensor([self.tokenizer(text)["input_ids"]]))
        for handle in handles:
            handle.remove()
        return kept

    def at_readout(self, side: int) -> np.ndarray:
        """Input (0) or output (1) of the output projection at the readout token `[block, text, width]`."""
        kept = self.seen({"o": OUTPUT_PROJECTIONS[self.model_type]})["o"]
        return np.array([[text[side][self.readout] for text in block] for block in kept])


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda model_type: save_model(model_type, tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def features(
    model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., StoredFeatures]:
    """Everything of TEXTS in a store of its own, per model and storage dtype."""

    @cache
    def build(model_type: str, store_dtype: str = "float32") -> StoredFeatures:
        return _stored(
            _target(model(model_type), store_dtype), tmp_path_factory.mktemp("home"), TEXTS
        )

    return build


def _target(folder: Path, store_dtype: str = "float32", **fields: object) -> ExtractTarget:
    capture = "hidden=all,values=all,attention_rows=all"
    config = {"backbone": {"source": str(folder)}, "capture": capture, **fields}
    return resolve_target(ExtractConfig.model_validate({**config, "store_dtype": store_dtype}))


def _stored(target: ExtractTarget, home: Path, texts: tuple[str, ...]) -> StoredFeatures:
    digests = [text_digest(t) for t in texts]
    report = extract(target, home, list(texts), digests, ExtractRuntime(device="cpu"), QUIET)
    return StoredFeatures(report.store, target.sizes, digests)


def _embed(features: StoredFeatures, **fields: object) -> np.ndarray:
    return embed(EmbedConfig.model_validate(fields), features, QUIET)


@pytest.mark.few(2)
@pytest.mark.parametrize("model_type", each_family(OUTPUT_PROJECTIONS))
def test_wva_is_what_the_output_projection_reads(
    model: Callable[[str], Path], features: Callable[..., StoredFeatures], model_type: str
) -> None:
    """Relations 37 and 38, in every block and on average over blocks."""
    reference = Reference(model_type, model(model_type))
    for side, method in ((0, "wva"), (1, "aligned_wva")):
        expected = reference.at_readout(side)
        for k in range(N_LAYERS):
            found = _embed(features(model_type), method=method, layers=str(k + 1))
            assert_close(found, expected[k])
        assert_close(_embed(features(model_type), method=method), expected.mean(0))


@pytest.mark.parametrize("model_type", VALUE_PROJECTIONS)
def test_va_is_the_mean_of_the_value_projection(
    model: Callable[[str], Path], features: Callable[..., StoredFeatures], model_type: str
) -> None:
    """Relation 42 on a model: over layers and tokens, special ones included."""
    kept = Reference(model_type, model(model_type)).seen({"v": VALUE_PROJECTIONS[model_type]})["v"]
    means = np.array([[out.mean(0) for _, out in block] for block in kept])
    assert_close(_embed(features(model_type), method="va"), means.mean(0))
    assert_close(_embed(features(model_type), method="va", layers="2-3"), means[1:].mean(0))


def test_hs_is_the_mean_of_transformers_hidden_states(
    model: Callable[[str], Path], features: Callable[..., StoredFeatures]
) -> None:
    reference = Reference("bert", model("bert"))
    for method, layers, kept in (("hs", "all", [1, 2, 3]), ("mean", "half", [1, 2, 3])):
        expected = []
        for text in TEXTS:
            ids = torch.tensor([reference.tokenizer(text)["input_ids"]])
            with torch.inference_mode():
                states = reference.model(input_ids=ids, output_hidden_states=True).hidden_states
            expected.append(np.mean([states[k][0].mean(0).numpy() for k in kept], axis=0))
        found = _embed(features("bert"), method=method, layers=layers)
        assert_close(found, expected)


def test_widths_with_grouped_heads(features: Callable[..., StoredFeatures]) -> None:
    """Relation 45: VA has n_kv * d_head columns, WVA n_q * d_head, AlignedWVA d_model."""
    grouped = features("qwen3")
    assert grouped.sizes.n_kv_heads < grouped.sizes.n_attn_heads
    widths = {m: _embed(grouped, method=m).shape[1] for m in ("hs", "va", "wva", "aligned_wva")}
    assert widths == {"hs": 32, "va": 2 * 12, "wva": 4 * 12, "aligned_wva": 32}


@pytest.mark.parametrize("model_type", ["qwen3", "gpt2"])
def test_the_mean_of_a_group_is_as_wide_as_the_values(
    model: Callable[[str], Path], features: Callable[..., StoredFeatures], model_type: str
) -> None:
    """What the output projection reads, averaged over heads that share values; without a group, as it is."""
    stored = features(model_type)
    sizes = stored.sizes
    read = Reference(model_type, model(model_type)).at_readout(0).mean(0)
    grouped = read.reshape(
        len(TEXTS), sizes.n_kv_heads, sizes.n_attn_heads // sizes.n_kv_heads, sizes.d_head
    )
    method = {"kind": "wva", "heads": "mean_of_group"}
    found = _embed(stored, method=method)
    width = EmbedConfig.model_validate({"method": method}).method.width("hidden", sizes)
    assert found.shape == (len(TEXTS), width) == (len(TEXTS), sizes.n_kv_heads * sizes.d_head)
    assert_close(found, grouped.mean(2).reshape(len(TEXTS), -1))
    if sizes.n_kv_heads == sizes.n_attn_heads:
        np.testing.assert_array_equal(found, _embed(stored, method="wva"))


def test_one_token_makes_wva_equal_to_va(model: Callable[[str], Path], tmp_path: Path) -> None:
    """Relation 41 on a model: GPT-2's tokenizer adds nothing, so "." is one token."""
    single = _stored(_target(model("gpt2")), tmp_path, (".", "!"))
    assert single.reader("values/1", "all").lengths.tolist() == [1, 1]
    assert_close(_embed(single, method="wva"), _embed(single, method="va"))


def test_last_is_the_prompts_last_token(model: Callable[[str], Path], tmp_path: Path) -> None:
    """What PromptEOL reads out, which is no token of the text."""
    template = "the {text} means in one word:"
    prompted = _stored(
        _target(model("llama"), recipe={"kind": "template", "template": template}), tmp_path, TEXTS
    )
    reference = Reference("llama", model("llama"))
    expected = []
    for text in TEXTS:
        ids = torch.tensor([reference.tokenizer(template.format(text=text))["input_ids"]])
        with torch.inference_mode():
            expected.append(reference.model(input_ids=ids).last_hidden_state[0, -1].numpy())
    assert_close(_embed(prompted, method="last"), expected)
    assert np.abs(_embed(prompted, method="mean") - np.array(expected)).max() > 0.1


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_float16_turns_vectors_by_no_more_than_its_rounding(
    features: Callable[..., StoredFeatures], model_type: str
) -> None:
    """With rounding u = 2^-11 a mean is off by at most u * mean|x| in each column, and a product of two
    rounded numbers by (2u + u^2) * sum|a v|, which the output projection carries on by its absolute
    values. A vector off by at most E (2-norm) turns by sin(angle) <= E / |v|, so 1 - cosine <= (E / |v|)^2.
    The 1e-6 is for float32 arithmetic."""
    exact, rounded = features(model_type), features(model_type, "float16")
    u = 2.0**-11
    bounds = {}
    for method, array in (("hs", "hidden/2"), ("va", "values/2")):
        ((_, rows),) = exact.reader(array, "all").in_order(len(TEXTS))
        bounds[method] = [u * np.abs(x).mean(0) for x in rows]
    ((_, rows),) = exact.reader("attention_rows/2", "all").in_order(len(TEXTS))
    ((_, values),) = exact.reader("values/2", "all").in_order(len(TEXTS))
    n_kv, n_q = exact.sizes.n_kv_heads, exact.sizes.n_attn_heads
    bounds["wva"] = [
        (2 * u + u * u)
        * np.einsum(
            "thd,th->hd", np.repeat(np.abs(v).reshape(len(v), n_kv, -1), n_q // n_kv, axis=1), row
        ).ravel()
        for row, v in zip(rows, values, strict=True)
    ]
    weight, _ = exact.projection(2)
    bounds["aligned_wva"] = [bound @ np.abs(weight) for bound in bounds["wva"]]
    for method, bound in bounds.items():
        a = _embed(exact, method=method, layers="2").astype(np.float64)
        b = _embed(rounded, method=method, layers="2").astype(np.float64)
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        limit = (np.linalg.norm(bound, axis=1) / np.linalg.norm(a, axis=1)) ** 2 + 1e-6
        assert limit.max() < 1e-3, f"{method}: the bound says nothing"
        assert (1 - cosine <= limit).all(), method
        assert not np.array_equal(a, b)


def test_texts_come_in_the_order_asked_for_with_repeats(
    features: Callable[..., StoredFeatures],
) -> None:
    every = features("llama")
    order = [3, 1, 1, 0]
    some = StoredFeatures(every.store, every.sizes, [every.digests[i] for i in order])
    for method in ("mean", "aligned_wva"):
        found, whole = _embed(some, method=method), _embed(every, method=method)
        np.testing.assert_allclose(found, whole[order], rtol=1e-6)
        assert np.array_equal(found[1], found[2])
    assert some.name(0) == f"text 0 ({TEXTS[3]!r})"


def test_a_reader_of_windows_gives_the_same(features: Callable[..., StoredFeatures]) -> None:
    """A budget smaller than one text: arrays are read in windows instead of whole."""
    whole = features("llama")
    windows = StoredFeatures(whole.store, whole.sizes, whole.digests, budget_bytes=64)
    for method in ("mean", "last", "wva"):
        np.testing.assert_array_equal(_embed(windows, method=method), _embed(whole, method=method))


def test_what_was_not_captured_is_named(model: Callable[[str], Path], tmp_path: Path) -> None:
    few = _stored(_target(model("bert"), capture="values=1"), tmp_path, TEXTS)
    assert _embed(few, method="va", layers="1").shape == (4, 32)
    with pytest.raises(NotFoundError, match="attention_rows/1 is missing"):
        _embed(few, method="wva", layers="1")
