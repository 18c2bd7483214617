"""Any aggregation of torch-geometric as a pooling, by name.

Aggregations may pad the texts of a batch to the longest, and some treat the padding as tokens. Those are run
on texts of equal length, so that a text's vector does not depend on the other texts of the batch.
Axes: t tokens of all texts, n texts, d input width.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn

from permafrost.stages.heads.head import Head
from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.heads.pyg_layers import (
    Family,
    SeededCalls,
    construction,
    draw_seed,
    width_of,
)
from permafrost.stages.heads.ragged_sums import owners
from permafrost.storage.errors import InputError

AGGREGATIONS = Family(
    module="torch_geometric.nn.aggr",
    noun="aggregation",
    given=frozenset({"in_channels", "channels", "gate_nn"}),
    filled=frozenset({"out_channels"}),
    inner=frozenset(),
    passed_on=None,
    refused={
        "Aggregation": "it is what the others are built on, and aggregates nothing by itself",
        "EquilibriumAggregation": "it minimises a mean over the texts of a batch, so a text's vector would "
        "depend on the texts beside it",
        "PatchTransformerAggregation": "it drops the tokens behind the last whole patch, and a text's vector "
        "would depend on the longest text beside it",
    },
)

_BY_LENGTH = ("GRUAggregation", "LCMAggregation", "LSTMAggregation")
"""Aggregations that read padding."""


def _perceptron(d: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))


_NETWORKS: Mapping[str, Mapping[str, Callable[[int], nn.Module]]] = {
    "AttentionalAggregation": {"gate_nn": lambda d: nn.Linear(d, 1)},
    "DeepSetsAggregation": {"local_nn": _perceptron, "global_nn": _perceptron},
}
"""Networks that a class needs: by parameter, as a function of the input width."""


class PygPoolHead(Head):
    """An aggregation of torch-geometric: `{kind: pyg_pool, name: Set2Set, args: {processing_steps: 3}}`."""

    kind: Literal["pyg_pool"] = "pyg_pool"
    name: str
    """A class of `torch_geometric.nn.aggr`."""
    args: dict[str, JsonValue] = Field(default={})
    """Its arguments, except the input width, which the head sets; `out_channels` defaults to it."""

    @model_validator(mode="after")
    def _known(self) -> "PygPoolHead":
        AGGREGATIONS.check(self.name, self.args)
        return self

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See `PygPooling`."""
        return PygPooling(self, d_in, generator)

    def require_width(self, d_in: int) -> None:
        """See `build`."""
        self.build(d_in, torch.Generator())

    def make(self, d_in: int) -> nn.Module:
        """Create the layer; call it inside `construction`.

        Raises:
            InputError: it cannot be created from these arguments and this width.
        """
        networks = _NETWORKS.get(self.name, {})
        others = {parameter: partial(make, d_in) for parameter, make in networks.items()}
        return AGGREGATIONS.make(self.name, self.args, _given(d_in), others)


def _given(d_in: int) -> dict[str, int]:
    return {"in_channels": d_in, "channels": d_in, "out_channels": d_in}


class PygPooling(Pooling):
    """A layer of torch-geometric over each text's tokens; `d_out` is determined by running it once."""

    def __init__(self, config: PygPoolHead, d_in: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        seed = draw_seed(generator)
        self.d_out = _width(config, d_in, seed)
        with construction(seed):
            self.layer = SeededCalls(config.make(d_in), seed)
        limit = config.args.get("max_num_elements")
        self.longest = limit if isinstance(limit, int) else None
        """Maximum tokens of a text, if the class has such a limit."""

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text.

        Raises:
            InputError: a text is longer than the class allows.
        """
        lengths = offsets.diff()
        if self.longest is not None and int(lengths.max()) > self.longest:
            raise InputError(
                f"a text has {int(lengths.max())} tokens, but {self.config.name} is made for "
                f"{self.longest}; set args.max_num_elements to the most that a text has"
            )
        if self.config.name not in _BY_LENGTH:
            return _pool(self.layer, tokens, offsets)
        vectors = tokens.new_empty(len(lengths), self.d_out)
        for length in lengths.unique().tolist():
            (alike,) = torch.nonzero(lengths == length, as_tuple=True)
            rows = offsets[alike, None] + torch.arange(length, device=tokens.device)
            starts = torch.arange(len(alike) + 1, device=tokens.device) * length
            vectors = vectors.index_copy(
                0, alike, _pool(self.layer, tokens[rows.flatten()], starts)
            )
        return vectors


def _pool(layer: SeededCalls, tokens: Tensor, offsets: Tensor) -> Any:
    return layer(x=tokens, index=owners(offsets, len(tokens)), dim_size=len(offsets) - 1)


def _width(config: PygPoolHead, d_in: int, seed: int) -> int:
    """Output width, determined in training mode on two texts of three and two tokens."""
    with construction(seed):
        layer = SeededCalls(config.make(d_in), seed).train()
    rows = torch.rand(5, d_in, generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, 3, 5])
    with AGGREGATIONS.explaining(config.name, config.args, _given(d_in)), torch.no_grad():
        out = _pool(layer, rows, offsets)
    return width_of(out, len(offsets) - 1, AGGREGATIONS.noun, config.name)
