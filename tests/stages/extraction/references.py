"""What captures are compared with: transformers' eager forward pass, altered by hooks of the tests' own.

One text at a time or padded on the left, never batched as ours; copies are made one by one.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import (
    OPENING,
    PLACEHOLDER,
    Encoded,
    Recipe,
    encode,
    parse_recipe,
    resolve_recipe,
)
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.ragged import Ragged
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.tiny_models import N_LAYERS, TEXTS

Pairs = Callable[[str], Pair]
DECODERS = sorted(name for name, family in FAMILIES.items() if family.is_decoder)
EVERYTHING = "hidden=all,values=all,attention_rows=all"

FITTING = (TEXTS[0], "a lake freezes slowly under ice .", "never a warm wind , snow !", TEXTS[3])
"""Texts that fit into the tiny models with placeholders before every fourth token."""

STATE_TOLERANCE = 2e-5
"""Relative to the largest state: fused and eager attention sum in other orders, in float32 (eps 1.2e-7),
and three blocks with wide weights amplify that."""
ROW_TOLERANCE = 5e-6
"""Absolute, on weights that sum to 1: float32 softmax of logits that differ by rounding."""
BF16_TOLERANCE = 0.1
"""Relative to the largest state: bfloat16 keeps 8 bits (eps 8e-3), over three blocks."""


def resolved(backbone: Backbone, recipe: str) -> Recipe:
    return resolve_recipe(parse_recipe(recipe), backbone.sizes)


def encoded(
    backbone: Backbone, recipe: str = "plain", texts: Sequence[str] = TEXTS, max_length: int = 60
) -> Encoded:
    return encode(resolved(backbone, recipe), backbone.tokenizer, texts, max_length)


def run(
    backbone: Backbone, capture: str, batch: Encoded | None = None, recipe: str = "plain"
) -> dict[str, Tensor]:
    """Ours."""
    arrays = parse_capture(capture).arrays(backbone.sizes)
    return forward(backbone, batch or encoded(backbone), arrays, resolved(backbone, recipe))


def threads_agree(backbone: Backbone, batches: Mapping[str, Encoded]) -> None:
    """Recipes, each with its batch, that run at once give what each gives alone."""
    expected = {r: run(backbone, EVERYTHING, batch, r) for r, batch in batches.items()}
    found: dict[str, list[dict[str, Tensor]]] = {r: [] for r in batches}

    def work(recipe: str) -> None:
        for _ in range(6):
            found[recipe].append(run(backbone, EVERYTHING, batches[recipe], recipe))

    threads = [threading.Thread(target=work, args=(r,)) for r in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for recipe, results in found.items():
        assert len(results) == 6
        for result in results:
            assert all(torch.equal(result[n], expected[recipe][n]) for n in expected[recipe])


def tensor(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))


def per_text(rows: Tensor, batch: Encoded) -> list[Tensor]:
    return list(rows.split(batch.token_ids.lengths.tolist()))


def close(ours: Tensor, theirs: Tensor, tolerance: float = STATE_TOLERANCE) -> bool:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max()) <= tolerance * max(float(theirs.abs().max()), 1.0)


@contextmanager
def seen(module: nn.Module, *, inputs: bool = False) -> Iterator[list[Tensor]]:
    """Inputs or outputs that pass a module; of several outputs the first."""
    passed: list[Tensor] = []

    def hook(_module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        passed.append(args[0] if inputs else first)

    handle = module.register_forward_hook(hook)
    try:
        yield passed
    finally:
        handle.remove()


@contextmanager
def entries(module: nn.Module) -> Iterator[list[str]]:
    """One entry per call of a module, counted before anything can leave the pass."""
    calls: list[str] = []
    handle = module.register_forward_pre_hook(lambda m, args: calls.append(type(m).__name__))
    try:
        yield calls
    finally:
        handle.remove()


def block_list(model: nn.Module) -> nn.ModuleList:
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == N_LAYERS]
    assert len(lists) == 1
    return lists[0]


def submodule(block: nn.Module, *suffixes: str) -> nn.Module:
    found = [m for name, m in block.named_modules() if name.endswith(suffixes)]
    assert len(found) == 1
    return found[0]


def projection(model: nn.Module, block: int) -> nn.Module:
    """The output projection of a block (1-based)."""
    return submodule(
        block_list(model)[block - 1],
        *("attention.output.dense", "o_proj", "out_proj", "out_lin"),
        *("attn.c_proj", "attention.dense", "attn.Wo", "attn.o"),
    )


def value_output(sizes: BackboneSizes, passed: Tensor) -> Tensor:
    """The values in what `value_module` put out for one text, `[T, n_kv_heads * d_head]`."""
    if sizes.model_type == "gpt_neox":
        # Query, key and value lie side by side within each head.
        return passed.unflatten(-1, (sizes.n_attn_heads, 3, sizes.d_head))[:, :, 2].flatten(1)
    return passed[:, -sizes.d_value :]


def value_module(model: nn.Module, block: int) -> nn.Module:
    """The linear layer that values come from, with queries and keys in some families."""
    return submodule(
        block_list(model)[block - 1],
        *("self.value", "attn.v", "v_proj", "v_lin"),
        *("c_attn", "query_key_value", "qkv_proj", "Wqkv"),
    )


def reference_run(pair: Pair, ids: np.ndarray) -> Any:
    with torch.no_grad():
        return pair.reference(
            input_ids=tensor(ids)[None], output_hidden_states=True, output_attentions=True
        )


def reference_values(pair: Pair, block: int, ids: np.ndarray) -> Tensor:
    """What the value projection itself puts out, without any attention code."""
    with seen(value_module(pair.reference, block)) as passed:
        reference_run(pair, ids)
    return value_output(pair.backbone.sizes, passed[0][0])


def prepended(
    backbone: Backbone, texts: Sequence[str] = FITTING, size: int = 4, *, placement: str = "both"
) -> Encoded:
    """Hierarchical token prepending over blocks of `size` tokens, written out token by token."""
    ids, spans, copies, starts = [], [], [], []
    for text in texts:
        tokens = backbone.tokenizer(text)["input_ids"]
        has_bos = tokens[0] == 0
        body = tokens[has_bos:]
        blocks = [body[i : i + size] for i in range(0, len(body), size)]
        openings = len(blocks) * (placement != "local")
        row = [*tokens[:has_bos], *[OPENING] * openings]
        start, pairs = len(row), []
        for m, block in enumerate(blocks):
            target = len(row)
            row += [*[PLACEHOLDER] * (placement != "global"), *block]
            source = len(row) - 1
            pairs += [[source, target]] * (placement != "global")
            pairs += [[source, int(has_bos) + m]] * (placement != "local")
        ids.append(np.array(row, np.int32))
        spans.append(np.array([i >= start and t >= 0 for i, t in enumerate(row)]))
        copies.append(np.array(pairs, np.int64).reshape(-1, 2))
        starts.append(start)
    ragged = Ragged.from_arrays(ids)
    return Encoded(
        token_ids=ragged,
        span=Ragged.from_arrays(spans),
        span_start=np.array(starts, np.int64),
        span_end=ragged.lengths.copy(),
        truncated=np.zeros(len(texts), np.bool_),
        copies=Ragged.from_arrays(copies),
    )


def mean_row(model: PreTrainedModel) -> Tensor:
    """The embedding that a new token gets: the mean of the old ones, before Gemma's factor."""
    return embedding_matrix(model).float().mean(0)


def embedding_matrix(model: PreTrainedModel) -> Tensor:
    """`[n_vocabulary, D]`."""
    return cast(nn.Embedding, model.get_input_embeddings()).weight.detach()


def embeddings(model: PreTrainedModel, ids: np.ndarray, rows: dict[int, Tensor]) -> Tensor:
    """`[T, D]`, placeholders as if `rows` were rows of the embedding matrix, before positions are added."""
    layer = cast(nn.Embedding, model.get_input_embeddings())
    dtype = layer.weight.dtype
    is_gemma = model.config.model_type == "gemma2"
    scale = torch.tensor(model.config.hidden_size**0.5 if is_gemma else 1.0).to(dtype)
    own = [layer(torch.tensor(i)) if i >= 0 else rows[i].to(dtype) * scale for i in ids.tolist()]
    return torch.stack(own)


@dataclass(frozen=True)
class Reference:
    """One text through transformers' own model."""

    states: list[Tensor]
    """After 0..L blocks, before copies, `[T, D]`."""
    entering: list[Tensor]
    """What blocks 1..L read, after copies."""
    values: list[Tensor]
    attentions: list[Tensor]
    """Per block `[H, T, T]`."""
    final: Tensor

    def detached(self) -> "Reference":
        """Without gradients."""
        return Reference(
            [x.detach() for x in self.states],
            [x.detach() for x in self.entering],
            [x.detach() for x in self.values],
            [x.detach() for x in self.attentions],
            self.final.detach(),
        )


def rewired_run(
    pair: Pair,
    inputs: Tensor,
    copies: np.ndarray,
    blocks: range,
    *,
    model: PreTrainedModel | None = None,
    padding: int = 0,
) -> Reference:
    """Run embeddings `[T, D]` and copy states, one row after the other, before the `blocks` (0-based).

    Args:
        pair: the backbone; its reference is run unless `model` is given.
        inputs: embeddings, without positions.
        copies: rows [source, target].
        blocks: before which copies are made.
        model: another copy of the weights.
        padding: so many padded positions are put to the left, and positions start after them.
    """
    model = model or pair.reference
    entering: list[Tensor] = []

    def hook(
        k: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        states = args[0]
        if k in blocks:
            changed = list(states[0])
            for source, target in copies.tolist():
                changed[padding + target] = states[0, padding + source]
            states = torch.stack(changed)[None]
        entering.append(states[0, padding:])
        return (states, *args[1:]), kwargs

    length = padding + len(inputs)
    mask = (torch.arange(length) >= padding).long()[None]
    options: dict[str, Any] = {}
    if padding:
        options["attention_mask"] = mask
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    padded = torch.cat([torch.ones(padding, inputs.shape[1], dtype=inputs.dtype), inputs])
    with ExitStack() as stack:
        values, leaving = [], []
        for k, block in enumerate(block_list(model)):
            handle = block.register_forward_pre_hook(
                lambda _m, args, kwargs, k=k: hook(k, args, kwargs), with_kwargs=True
            )
            stack.callback(handle.remove)
            leaving.append(stack.enter_context(seen(block)))
            values.append(stack.enter_context(seen(value_module(model, k + 1))))
        before = stack.enter_context(seen_before(block_list(model)[0]))
        out = model(inputs_embeds=padded[None], output_attentions=True, **options)
    sizes = pair.backbone.sizes
    return Reference(
        states=[before[0][0, padding:], *(x[0][0, padding:] for x in leaving)],
        entering=entering,
        values=[value_output(sizes, v[0][0])[padding:] for v in values],
        attentions=[a[0][:, padding:, padding:] for a in out.attentions or ()],
        final=out.last_hidden_state[0, padding:],
    )


@contextmanager
def seen_before(block: nn.Module) -> Iterator[list[Tensor]]:
    """What reaches a block before any other hook has changed it."""
    passed: list[Tensor] = []

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        passed.append(args[0] if args else kwargs["hidden_states"])

    handle = block.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
    try:
        yield passed
    finally:
        handle.remove()
