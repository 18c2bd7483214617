"""Classes of torch-geometric by name, with arguments from a config.

What a head knows (widths, and small networks where a class wants one) it gives itself; the rest are plain
values in `args`. torch-geometric is imported when a class of it is named: the import takes seconds.
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
from permafrost.stages.heads.directed_draws import DirectedDraws, require_directed
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_construction = threading.Lock()
"""Held while a layer is made, for milliseconds: the first object of a class completes its class."""

_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_AGGREGATIONS = ("aggr", "aggrs", "aggregators")
"""Arguments that name aggregations inside a layer."""
_READ_PADDING = ("equilibrium", "gru", "lcm", "lstm", "mlp", "patchtransformer")


@dataclass(frozen=True)
class Family:
    """Classes of one module of torch-geometric that stand in one place of a head."""

    module: str
    noun: str
    given: frozenset[str]
    """Parameters without a default that the head sets, so that a config may not."""
    filled: frozenset[str]
    """Parameters that the head sets where a config does not."""
    inner: frozenset[str]
    """Parameters that are of this family themselves, written as `{name: ..., args: ...}`."""
    passed_on: frozenset[str] | None
    """What a class may hand to the one it is built on; None where that differs, and building it tells."""
    refused: Mapping[str, str]
    """Why a class cannot stand there, by name."""

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
        """Check a name and its arguments as far as the signature tells; widths are known later.

        Raises:
            InputError: no such class, a refused one, an argument that it does not have or the head sets, one
                of the wrong type, or one that is missing.
        """
        layer = self.find(name)
        parameters = signature(layer)
        further = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        hints = _hints(layer)
        for argument, value in args.items():
            parameter = parameters.get(argument)
            handed = further and (self.passed_on is None or argument in self.passed_on)
            if parameter is None and not handed:
                raise InputError(f"{name} has no argument {argument}; {takes(layer)}")
            if parameter is not None and argument in self.given and _required(parameter):
                raise InputError(
                    f"{name} gets its argument {argument} from the head, so args may not set it; "
                    f"{takes(layer)}"
                )
            if argument == "cached" and value:
                raise InputError(
                    f"{name} with cached would use the token graph of its first batch for every other; "
                    "leave cached out"
                )
            _require_bounded(name, argument, value)
            if argument in _AGGREGATIONS:
                _require_no_padding(name, argument, value)
            if argument in self.inner and isinstance(value, dict):
                self.check(*inner_layer(name, argument, value))
            elif argument in hints and not _has_type(value, hints[argument]):
                raise InputError(
                    f"{name} wants {argument} to be {_written(hints[argument])}, not {quoted(value)}; "
                    f"{takes(layer)}"
                )
        for argument, parameter in parameters.items():
            known = argument in args or argument in self.given or argument in self.filled
            if _required(parameter) and not known:
                raise InputError(f"{name} needs {argument} in args; {takes(layer)}")

    def make(
        self,
        name: str,
        args: Mapping[str, JsonValue],
        widths: Mapping[str, int],
        others: Mapping[str, Callable[[], Any]],
    ) -> nn.Module:
        """The layer on the CPU; call it inside `construction`.

        Args:
            name: of the class.
            args: as checked.
            widths: by parameter, for those that the class requires.
            others: what makes further arguments, for those that the class has, instead of those in `args`.

        Raises:
            InputError: the class refuses its arguments, or draws where it cannot be directed.
        """
        cls = self.find(name)
        parameters = signature(cls)
        given: dict[str, Any] = {
            k: v for k, v in widths.items() if k in parameters and _required(parameters[k])
        }
        given |= {k: v for k, v in args.items() if k not in others}
        if isinstance(given.get("deg"), list):
            given["deg"] = torch.tensor(given["deg"])
        with self.explaining(name, args, widths):
            given |= {k: make() for k, make in others.items() if k in parameters}
            layer = cls(**given)
        require_directed(layer, name)
        return layer

    @contextmanager
    def explaining(
        self, name: str, args: Mapping[str, JsonValue], widths: Mapping[str, int]
    ) -> Iterator[None]:
        """Whatever a class raises becomes an error about its arguments."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            said = str(error).strip().split("\n")[0] or "no reason given"
            beside = ", ".join(f"{k} {v}" for k, v in widths.items())
            raise InputError(
                f"{self.noun} {name} of torch-geometric does not run with args {quoted(dict(args))} and "
                f"{beside}: {type(error).__name__}: {said}; {takes(self.find(name))}"
            ) from error


@contextmanager
def construction(seed: int) -> Iterator[None]:
    """Where layers are made: their initial weights are drawn from `seed`."""
    with _construction, DirectedDraws(torch.Generator().manual_seed(seed)):
        yield


def inner_layer(
    name: str, argument: str, value: Mapping[str, JsonValue]
) -> tuple[str, dict[str, JsonValue]]:
    """Name and arguments of a layer inside another.

    Raises:
        InputError: not written as one.
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
    """What a class may be given, for messages."""
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
    most = MAX_TEXTS if argument == "deg" else MAX_WIDTH  # `deg` counts tokens
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, int | float) and not abs(one) <= most:
            raise InputError(
                f"{name} has {quoted(one)} in {argument}; a number here is {most:,} at most"
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


class SeededCalls(nn.Module):
    """A library's layer whose draws in training depend on a seed and on how often it was called.

    The count is part of the state, so that a fit that goes on after a kill draws what it would have drawn.
    """

    calls: Tensor

    def __init__(self, layer: nn.Module, seed: int) -> None:
        super().__init__()
        self.layer = layer
        self.seed = seed
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, **inputs: Any) -> Any:
        """What the layer says to `inputs`."""
        if not self.training:
            return self.layer(**inputs)
        self.calls += 1
        draw = torch.Generator(self.calls.device).manual_seed(self.seed + int(self.calls))
        with DirectedDraws(draw):
            return self.layer(**inputs)


def draw_seed(generator: torch.Generator) -> int:
    """A seed for a layer's own generators."""
    return int(torch.randint(1 << 62, (), generator=generator))


def width_of(out: Any, n_rows: int, noun: str, name: str) -> int:
    """Columns of what a layer gave for so many rows.

    Raises:
        InputError: it is no such tensor.
    """
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != n_rows:
        given = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"{noun} {name} of torch-geometric gives {given} where {n_rows} rows are wanted; set args so "
            "that it gives one row each"
        )
    return out.shape[1]
