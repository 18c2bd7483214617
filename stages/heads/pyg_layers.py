"""Classes of torch-geometric by name, with arguments from a config.

The head sets what it knows itself (widths, and small networks if a class needs one); the rest are plain
values in `args`. torch-geometric is imported only when one of its classes is named: the import takes seconds.
"""

import difflib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_type_hints

import torch
from pydantic import ConfigDict, JsonValue, PydanticUserError, TypeAdapter, ValidationError
from torch import Tensor, nn

from permafrost.stages.bounds import MAX_TEXTS, MAX_WIDTH
from permafrost.stages.heads.batch_normalisation import normalised
from permafrost.stages.heads.directed_draws import DirectedDraws, require_directed
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_construction = threading.Lock()
"""Held while a layer is created, for milliseconds: the first instance of a class completes the class."""

_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_AGGREGATIONS = ("aggr", "aggrs", "aggregators")
"""Arguments that name an aggregation inside a layer."""
_READ_PADDING = ("equilibrium", "gru", "lcm", "lstm", "mlp", "patchtransformer")

_CUDA = "it wants a compiled library of its own, which runs on NVIDIA GPUs only"
_SEARCH = "it looks for neighbours by itself, so the graph would not be used"
_POINTS = "it wants points in space, and the nodes of a graph made from text have none"

REFUSED_CONVOLUTIONS: Mapping[str, str] = {
    "MessagePassing": "it is what the others are built on, and convolves nothing by itself",
    "CuGraphSAGEConv": _CUDA,
    "CuGraphGATConv": _CUDA,
    "CuGraphRGCNConv": _CUDA,
    "FusedGATConv": _CUDA,
    "GravNetConv": _SEARCH,
    "DynamicEdgeConv": _SEARCH,
    "XConv": _POINTS,
    "PointNetConv": _POINTS,
    "PPFConv": _POINTS,
    "PointTransformerConv": _POINTS,
    "PointGNNConv": _POINTS,
    "SplineConv": _POINTS,
    "MeshCNNConv": "it wants the edges of a triangle mesh, each with four neighbours",
}
"""Convolutions that no graph made from text can use, tokens or entities as its nodes, with the reason."""


@dataclass(frozen=True)
class Family:
    """The classes of one module of torch-geometric that can serve as one part of a head."""

    module: str
    noun: str
    given: frozenset[str]
    """Parameters without a default that the head sets, so that a config may not."""
    filled: frozenset[str]
    """Parameters that the head sets if the config does not."""
    inner: frozenset[str]
    """Parameters that are layers of this family themselves, written as `{name: ..., args: ...}`."""
    passed_on: frozenset[str] | None
    """Arguments that a class may pass on to its base class; None if only building a class shows them."""
    refused: Mapping[str, str]
    """Classes that cannot be used, by name, with the reason."""
    setter: str = "the head"
    """What sets the arguments in `given`, for messages."""

    def find(self, name: str) -> type[nn.Module]:
        """The class of that name.

        Raises:
            InputError: there is none, or it is refused.
        """
        module = import_module(self.module)
        names = [n for n in module.__all__ if inspect.isclass(getattr(module, n))]
        if name not in names:
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
            advice = f"; the closest are {', '.join(close)}" if close else ""
            raise InputError(
                f"torch-geometric has no {self.noun} {quoted(name)}{advice} (see {self.module})"
            )
        if name in self.refused:
            raise InputError(
                f"{self.noun} {name} of torch-geometric cannot be used here: {self.refused[name]}"
            )
        return getattr(module, name)

    def check(self, name: str, args: Mapping[str, JsonValue]) -> None:
        """Check a name and its arguments as far as the signature allows; widths are not known yet.

        Raises:
            InputError: there is no such class or it is refused, or an argument is unknown, set by the head,
                of the wrong type or missing.
        """
        layer = self.find(name)
        parameters = signature(layer)
        further = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        hints = _hints(layer)
        for argument, value in args.items():
            parameter = parameters.get(argument)
            is_passed_on = further and (self.passed_on is None or argument in self.passed_on)
            if parameter is None and not is_passed_on:
                raise InputError(f"{name} has no argument {argument}; {takes(layer)}")
            if parameter is not None and argument in self.given and _required(parameter):
                raise InputError(
                    f"{name} gets its argument {argument} from {self.setter}, so args may not set it; "
                    f"{takes(layer)}"
                )
            if argument == "cached" and value:
                raise InputError(
                    f"{name} with cached would use the graphs of its first batch for every other; "
                    "leave cached out"
                )
            _require_bounded(name, argument, value)
            if argument in _AGGREGATIONS:
                _require_no_padding(name, argument, value)
            if argument == "attn_type" and value == "performer":
                raise InputError(
                    f"{name} with attn_type performer attends to the padding of a batch, so a text's vector "
                    "would depend on the texts beside it; use 'multihead'"
                )
            if argument in self.inner and isinstance(value, dict):
                self.check(*inner_layer(name, argument, value))
            elif argument in hints and not _has_type(value, hints[argument]):
                raise InputError(
                    f"{name} wants {argument} to be {_written(hints[argument])}, not {quoted(value)}; "
                    f"{takes(layer)}"
                )
        for argument, parameter in parameters.items():
            is_set = argument in args or argument in self.given or argument in self.filled
            if _required(parameter) and not is_set:
                raise InputError(f"{name} needs {argument} in args; {takes(layer)}")

    def make(
        self,
        name: str,
        args: Mapping[str, JsonValue],
        widths: Mapping[str, int],
        others: Mapping[str, Callable[[], Any]],
    ) -> nn.Module:
        """Create the layer on the CPU; call it inside `construction`.

        Args:
            name: of the class.
            args: checked by `check`.
            widths: by parameter; used for those that the class requires.
            others: factories of further arguments by parameter, used instead of `args` if the class has them.

        Raises:
            InputError: the class refuses its arguments, or draws where `DirectedDraws` cannot see it.
        """
        cls = self.find(name)
        parameters = signature(cls)
        values: dict[str, Any] = {
            k: v for k, v in widths.items() if k in parameters and _required(parameters[k])
        }
        values |= {k: v for k, v in args.items() if k not in others}
        if isinstance(values.get("deg"), list):
            values["deg"] = torch.tensor(values["deg"])
        with self.explaining(name, args, widths):
            values |= {k: make() for k, make in others.items() if k in parameters}
            layer = cls(**values)
        require_directed(layer, name)
        return layer

    @contextmanager
    def explaining(
        self, name: str, args: Mapping[str, JsonValue], widths: Mapping[str, int]
    ) -> Iterator[None]:
        """Turn whatever a class raises into an error about its arguments."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            reason = str(error).strip().split("\n")[0] or "no reason given"
            beside = ", ".join(f"{k} {v}" for k, v in widths.items())
            raise InputError(
                f"{self.noun} {name} of torch-geometric does not run with args {quoted(dict(args))} and "
                f"{beside}: {type(error).__name__}: {reason}; {takes(self.find(name))}"
            ) from error


@contextmanager
def construction(seed: int) -> Iterator[None]:
    """Create layers inside this context; their initial weights are drawn from `seed`."""
    with _construction, DirectedDraws(torch.Generator().manual_seed(seed)):
        yield


def inner_layer(
    name: str, argument: str, value: Mapping[str, JsonValue]
) -> tuple[str, dict[str, JsonValue]]:
    """Name and arguments of a layer inside another.

    Raises:
        InputError: the value does not have the form `{name: ..., args: ...}`.
    """
    inner, args = value.get("name"), value.get("args", {})
    if not isinstance(inner, str) or not isinstance(args, dict) or value.keys() - {"name", "args"}:
        raise InputError(
            f"{name} wants {argument} to be {{name: ..., args: {{...}}}}, not {quoted(dict(value))}"
        )
    return inner, args


def signature(layer: type[nn.Module]) -> Mapping[str, inspect.Parameter]:
    """Parameters of a class, by name."""
    return inspect.signature(layer).parameters


def takes(layer: type[nn.Module]) -> str:
    """The arguments of a class, for messages."""
    parts: list[str] = []
    for name, parameter in signature(layer).items():
        if parameter.kind not in _STARRED:
            parts.append(name if _required(parameter) else f"{name}={parameter.default}")
    return f"{layer.__name__} takes {', '.join(parts) or 'nothing'}"


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _STARRED


def _hints(layer: type[nn.Module]) -> dict[str, Any]:
    try:
        return get_type_hints(layer.__init__)
    except (NameError, TypeError):  # annotated with names that the module lacks
        return {}


def _require_bounded(name: str, argument: str, value: JsonValue) -> None:
    limit = MAX_TEXTS if argument == "deg" else MAX_WIDTH  # `deg` counts tokens
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, int | float) and not abs(one) <= limit:
            raise InputError(
                f"{name} has {quoted(one)} in {argument}; a number here is {limit:,} at most"
            )


def _require_no_padding(name: str, argument: str, value: JsonValue) -> None:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str) and one.lower().removesuffix("aggregation") in _READ_PADDING:
            raise InputError(
                f"{name} has {quoted(one)} in {argument}, which reads the padding of a batch, so a text's "
                "vector would depend on the texts beside it; use another aggregation"
            )


def _has_type(value: JsonValue, hint: Any) -> bool:
    if _written(hint) == "Tensor":
        hint = list[float]
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return True
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _written(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    return text.replace("typing.", "").replace("torch_geometric.nn.aggr.base.", "")


class _NormOfAnyRows(nn.BatchNorm1d):
    """A single row, which has no variance, is normalised by the running statistics, also in training."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise rows."""
        return normalised(self, input) if len(input) == 1 else super().forward(input)


def with_norms_of_one_row(layer: nn.Module) -> nn.Module:
    """A layer whose batch normalisations take a batch of one row in training, which torch's refuse."""
    for parent in list(layer.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.BatchNorm1d:
                norm = _NormOfAnyRows(
                    child.num_features,
                    child.eps,
                    child.momentum,
                    child.affine,
                    child.track_running_stats,
                )
                norm.load_state_dict(child.state_dict())
                setattr(parent, name, norm)
    return layer


class SeededCalls(nn.Module):
    """Wraps a library's layer, whose draws in training then depend on a seed and the number of calls.

    The count is part of the state, so that a resumed fit draws the same numbers.
    """

    calls: Tensor

    def __init__(self, layer: nn.Module, seed: int) -> None:
        super().__init__()
        self.layer = with_norms_of_one_row(layer)
        self.seed = seed
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, **inputs: Any) -> Any:
        """Call the layer."""
        if not self.training:
            return self.layer(**inputs)
        self.calls += 1
        draw = torch.Generator(self.calls.device).manual_seed(self.seed + int(self.calls))
        with DirectedDraws(draw):
            return self.layer(**inputs)


def draw_seed(generator: torch.Generator) -> int:
    """Draw a seed for a layer's own generators."""
    return int(torch.randint(1 << 62, (), generator=generator))


def width_of(out: Any, n_rows: int, noun: str, name: str) -> int:
    """Number of columns of a layer's output for `n_rows` rows.

    Raises:
        InputError: the output is not a matrix with that many rows.
    """
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != n_rows:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"{noun} {name} of torch-geometric gives {shape} where {n_rows} rows are expected; set args so "
            "that it gives one row each"
        )
    return out.shape[1]
