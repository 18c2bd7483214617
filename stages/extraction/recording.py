"""Recording tensors during a forward pass, before anything is altered in it.

Hooks are installed once, when a model is loaded; they and the attention function look for a `Recorder` in
a context variable. Threads and nested calls each have their own, so several extractions can share a
process, and even a model; without a recorder a model runs as usual.

Axes: B texts, T positions, Q the last of them (all without a cache of keys), D columns.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, cast

import transformers
from jaxtyping import Bool, Float
from torch import Tensor, nn

from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.capture import ArrayName, Index, What
from permafrost.stages.extraction.contrast import watch_heads
from permafrost.stages.extraction.families import Family
from permafrost.stages.extraction.kernels import attention_row
from permafrost.stages.extraction.rewiring import watch_rewiring
from permafrost.storage.errors import PermafrostError
from permafrost.storage.quoting import quoted

_BLOCK = "permafrost_block"
"""Attribute on attention modules: the block they are in, 1..L. DistilBERT's have no layer index."""


Keep = Callable[[str, Tensor], Tensor]
"""Called with the rows of an array, `[n, d]`, as soon as they are computed; returns what to keep."""
Leave = Literal["after", "inside"]
"""Where a pass ends: after the last block, or inside it, as soon as it is about to attend: values and
attention rows are known then."""


class _LastBlockDoneError(Exception):
    """Leaves a forward pass early; never seen outside `recording`."""


class Recorder:
    """Keeps the requested arrays of one forward pass, as rows without padding."""

    def __init__(
        self,
        names: Sequence[ArrayName],
        batch: Batch,
        stop_after: int | None,
        keep: Keep = lambda _, rows: rows,
        leave: Leave = "after",
    ) -> None:
        """Args: names: requested arrays. batch: the input. stop_after: last block to run, 0 for none. keep:
        called with the rows of each array at once. leave: where `stop_after` is left."""
        self.rows: dict[str, Tensor] = {}
        self._keep = keep
        self._batch = batch
        self._stop_after = stop_after
        self._leave = leave
        self._wanted: dict[tuple[What, Index], list[ArrayName]] = {}
        for name in names:
            self._wanted.setdefault((name.what, name.index), []).append(name)
        self._seen: Counter[tuple[What, Index]] = Counter()

    def hidden(self, index: Index, states_BTD: Tensor) -> None:
        """Called with the residual stream at `index`."""
        self._record("hidden", index, states_BTD)
        if index == self._stop_after:
            raise _LastBlockDoneError

    def attention(
        self,
        block: int,
        query: Float[Tensor, "b h q d"],
        key: Float[Tensor, "b g t d"],
        value: Float[Tensor, "b g t d_v"],
        mask: Bool[Tensor, "b _ q t"] | None,
        *,
        scaling: float,
        causal: bool,
        softcap: float | None,
        position_bias: Float[Tensor, "b h q t"] | None,
    ) -> None:
        """Called before block `block` attends; queries and keys are after rotary embedding."""
        if ("values", block) in self._wanted:
            self._record("values", block, value.transpose(1, 2).flatten(2))
        if ("attention_rows", block) in self._wanted:
            row = attention_row(
                query,
                key,
                mask,
                self._batch.readout,
                scaling=scaling,
                causal=causal,
                softcap=softcap,
                position_bias=position_bias,
            )
            self._record("attention_rows", block, row)
        if block == self._stop_after and self._leave == "inside":
            raise _LastBlockDoneError

    def require_complete(self, model_type: str) -> None:
        """Raises: PermafrostError: a requested tensor was not seen exactly once."""
        for (what, index), names in self._wanted.items():
            n = self._seen[what, index]
            if n != 1:
                raise PermafrostError(
                    f"{what}/{index} of a {quoted(model_type)} backbone was seen {n} times in one forward "
                    f"pass instead of once, so {names[0].text} cannot be trusted; nothing of this batch was "
                    f"kept. This model does not run as its architecture's description in families.py says"
                )

    def _record(self, what: What, index: Index, rows_BTD: Tensor) -> None:
        self._seen[what, index] += 1
        batch = self._batch
        for name in self._wanted.get((what, index), ()):
            if name.how is None:
                rows = batch.pack(rows_BTD)
            elif name.how == "mean":
                rows = batch.span_mean(rows_BTD)
            elif name.how == "sum":
                rows = batch.span_sum(rows_BTD)
            else:
                rows = batch.at(batch.last if name.how == "last" else batch.readout, rows_BTD)
            self.rows[name.text] = self._keep(name.text, rows)


_recorder: ContextVar[Recorder | None] = ContextVar("permafrost_recorder", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record the forward pass in the `with` body; it may end early, after the recorder's last block."""
    token = _recorder.set(recorder)
    try:
        yield
    except _LastBlockDoneError:
        pass
    finally:
        _recorder.reset(token)


def current_block(attention_module: nn.Module) -> tuple[Recorder, int] | None:
    """The active recorder and the block that `attention_module` belongs to; None without a recorder."""
    recorder = _recorder.get()
    return None if recorder is None else (recorder, cast(int, getattr(attention_module, _BLOCK)))


def watch(model: "transformers.PreTrainedModel", family: Family) -> None:
    """Install the hooks. transformers' own `output_hidden_states` is not used: its last entry has the final
    norm already applied, and it keeps every layer in memory."""
    blocks = family.block_list(model)
    blocks[0].register_forward_pre_hook(_before_first, with_kwargs=True)
    for k, block in enumerate(blocks, start=1):
        block.register_forward_hook(partial(_after, k))
        setattr(family.attention_module(model, k), _BLOCK, k)
    if family.has_final_norm(model.config):
        norm = family.norm_module(model)
        assert norm is not None, "a family with a final norm says where it is"
        norm.register_forward_hook(partial(_after, "final"))
    watch_rewiring(model, family)
    watch_heads(model, family)


def _before_first(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if (recorder := _recorder.get()) is not None:
        recorder.hidden(0, args[0] if args else kwargs["hidden_states"])


def _after(index: Index, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    if (recorder := _recorder.get()) is not None:
        recorder.hidden(index, output[0] if isinstance(output, tuple) else output)
