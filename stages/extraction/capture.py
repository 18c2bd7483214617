"""What to keep of a forward pass: which tensors, at which layers, per token or per text.

L: number of blocks. Layers of the residual stream are 0..L and `final` (after the final norm, where
there is one); values and attention rows belong to blocks 1..L.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, field_validator, model_validator

from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

What = Literal["hidden", "values", "attention_rows"]
At = Literal["tokens", "readout", "mean", "sum", "last"]
How = Literal["readout", "mean", "sum", "last"]
Index = int | Literal["final"]


def index_as_text(value: object) -> object:
    """A whole number as its digits: YAML reads `layers: 4` as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


LayersText = Annotated[str, BeforeValidator(index_as_text)]
"""A selection of layers as text; a single index may also be an integer."""

EXAMPLE = "hidden=all@tokens,values=4-6,9@tokens,attention_rows=all"
FROM_THE_END = r"-[1-9][0-9]{0,8}"
"""A block counted from the end: -1 is block L, before any final norm, -2 the block below it."""
LAYER_WORDS = rf"all|half|last|final|[0-9]{{1,9}}|[0-9]{{1,9}}-[0-9]{{1,9}}|{FROM_THE_END}"
_LAYER = re.compile(LAYER_WORDS)


@dataclass(frozen=True)
class ArrayName:
    """The name of an array in the store, parsed."""

    what: What
    how: How | None
    """How it was pooled to one row per text; None for one row per token."""
    index: Index
    """Layer: 0..L or `final` for hidden states, a block 1..L otherwise."""

    @classmethod
    def parse(cls, text: str) -> "ArrayName":
        """Parse `hidden/3`, `values/3`, `attention_rows/3` or `pooled/hidden_mean/3`.

        Raises:
            InputError: not the name of a captured array.
        """
        match = re.fullmatch(
            r"(?:(hidden|values|attention_rows)|pooled/(hidden|values)_(readout|mean|sum|last))"
            r"/(0|[1-9][0-9]{0,8}|final)",
            text,
        )
        if match is None or (match[4] == "final" and "hidden" not in (match[1], match[2])):
            raise InputError(
                f"{quoted(text)} is not a captured array; names are hidden/K, hidden/final, values/K, "
                f"attention_rows/K and pooled/WHAT_HOW/K with WHAT hidden or values and HOW readout, mean, "
                f"sum or last"
            )
        index: Index = "final" if match[4] == "final" else int(match[4])
        return cls(cast(What, match[1] or match[2]), cast(How | None, match[3]), index)

    @property
    def text(self) -> str:
        """The name in the store."""
        if self.how is None:
            return f"{self.what}/{self.index}"
        return f"pooled/{self.what}_{self.how}/{self.index}"

    @property
    def axis(self) -> Literal["token", "text"]:
        """Whether rows are per token or per text."""
        return "token" if self.how is None else "text"

    def width(self, sizes: BackboneSizes) -> int:
        """Columns of the array."""
        return {
            "hidden": sizes.d_model,
            "values": sizes.d_value,
            "attention_rows": sizes.n_attn_heads,
        }[self.what]

    def require(self, sizes: BackboneSizes) -> None:
        """Raises: InputError: a backbone of these sizes has no such array."""
        CaptureItem(what=self.what, layers=str(self.index), at=self.how or "tokens").names(sizes)

    def block(self, sizes: BackboneSizes) -> int:
        """The last block that has to run to compute it; 0 for the embedding output."""
        return sizes.n_layers if self.index == "final" else self.index


def from_the_start(part: str, sizes: BackboneSizes) -> str:
    """One part of a selection of layers, `-2` as the number of a block; other parts as they are.

    Raises:
        InputError: the backbone has fewer blocks.
    """
    if re.fullmatch(FROM_THE_END, part) is None:
        return part
    if (block := sizes.n_layers + 1 + int(part)) < 1:
        raise InputError(
            f"layer {part} was asked for, but this {sizes.model_type} backbone has {sizes.n_layers} blocks, "
            f"-{sizes.n_layers} to -1 from the end"
        )
    return str(block)


def checked_layers(layers: str) -> str:
    """A list of layers as it is written, without spaces.

    Raises:
        ValueError: a part of it is no layer, whatever the backbone has.
    """
    parts = [part.strip() for part in layers.split(",")]
    for part in parts:
        if not _LAYER.fullmatch(part):
            raise ValueError(
                f"{quoted(part)} is not a layer; write all, half, last, final, an index such as 4 or -2 "
                "or a range such as 4-6"
            )
    return ",".join(parts)


class CaptureItem(BaseModel):
    """One kind of tensor at some layers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: What
    """The kind of tensor."""
    layers: LayersText
    """`all`, `half` (the deep half, L // 2 .. L, as Value Aggregation uses it), `final`, `last` (`final` of
    hidden states where there is one, else block L), indices and ranges (both ends included), separated by
    commas. -1 is block L before any final norm, -2 the block below it, and so on."""
    at: At = "tokens"
    """One row per token, or one per text: `readout` (the recipe's readout token), `mean` (over the
    recipe's span) or `last` (the last token of the input)."""

    @field_validator("layers")
    @classmethod
    def _layers_are_valid(cls, layers: str) -> str:
        return checked_layers(layers)

    @model_validator(mode="after")
    def _rows_are_per_token(self) -> "CaptureItem":
        if self.what == "attention_rows" and self.at != "tokens":
            raise ValueError(
                f"attention rows are weights over tokens and cannot be pooled with @{self.at}; write "
                f"attention_rows={self.layers}@tokens"
            )
        return self

    def names(self, sizes: BackboneSizes) -> set[ArrayName]:
        """The arrays for a backbone of these sizes.

        Raises:
            InputError: a layer that this backbone does not have.
        """
        how: How | None = None if self.at == "tokens" else self.at
        indices: list[Index] = [
            i for part in self.layers.split(",") for i in self._indices(part, sizes)
        ]
        return {ArrayName(self.what, how, index) for index in indices}

    def _indices(self, part: str, sizes: BackboneSizes) -> list[Index]:
        n, first = sizes.n_layers, 0 if self.what == "hidden" else 1
        has_final = self.what == "hidden" and sizes.has_final_norm
        if part == "all":
            return [*range(first, n + 1), *(["final"] if has_final else [])]
        if part == "half":
            return list(range(max(n // 2, 1), n + 1))
        if part == "last":
            return ["final" if has_final else n]
        if part == "final":
            if has_final:
                return ["final"]
            suggestion = f"hidden={n}" if self.what == "hidden" else f"{self.what}={n}"
            raise InputError(
                f"{self.what}=final was asked for, but "
                + (
                    f"this {sizes.model_type} backbone has no norm after its last block"
                    if self.what == "hidden"
                    else f"{self.what} belong to blocks, 1 to {n}, and none follows the final norm"
                )
                + f"; write {suggestion}"
            )
        low, _, high = from_the_start(part, sizes).partition("-")
        start, stop = int(low), int(high or low)
        if not first <= start <= stop <= n:
            raise InputError(
                f"{self.what}={part} was asked for, but this {sizes.model_type} backbone has "
                f"{self.what} {first} to {n}{' and final' if has_final else ''}; choose layers among these"
                + (", lower end of a range first" if start > stop else "")
            )
        return list(range(start, stop + 1))


class Capture(BaseModel):
    """Everything to capture. In YAML it may also be a string, see `parse_capture`, or a list of such."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    items: tuple[CaptureItem, ...]
    """What is kept, one entry for each kind of tensor and place."""

    @model_validator(mode="before")
    @classmethod
    def _parse_text(cls, value: Any) -> Any:
        parts = cast(Any, value) if isinstance(value, list | tuple) else [value]
        if parts and all(isinstance(part, str) for part in parts):
            return {"items": [item for part in parts for item in _split(part)]}
        return value

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Store names, sorted by kind and then by layer, each once.

        Raises:
            InputError: a layer that this backbone does not have.
        """
        return in_order({n.text for item in self.items for n in item.names(sizes)})


def parse_capture(text: str) -> Capture:
    """Parse `hidden=all@tokens,values=4-6,9@tokens,attention_rows=all`.

    Items are `WHAT=LAYERS[@AT]`, separated by commas; LAYERS may contain commas itself.

    Raises:
        InputError: the text does not have this form; the message names the part and the choices.
    """
    try:
        return Capture(items=tuple(CaptureItem.model_validate(item) for item in _split(text)))
    except InputError:
        raise
    except ValueError as error:
        # pydantic's full message adds a link to its website, which does not help here.
        reasons = "; ".join(str(e["msg"]) for e in cast(Any, error).errors())
        raise InputError(f"cannot read the capture {quoted(text)}: {reasons}") from error


def meant_by(layer: str, sizes: BackboneSizes) -> str | None:
    """The array that a layer written as a capture is (`hidden/5@mean`) stands for; None for any other."""
    try:
        arrays = parse_capture(layer.replace("/", "=", 1)).arrays(sizes)
    except InputError:
        return None
    return arrays[0] if len(arrays) == 1 and arrays[0] != layer else None


def in_order(arrays: Iterable[str]) -> tuple[str, ...]:
    """Array names sorted by kind and then by layer, each once."""
    return tuple(n.text for n in sorted({ArrayName.parse(a) for a in arrays}, key=_order))


def deepest_block(arrays: Sequence[str], sizes: BackboneSizes) -> int:
    """The last block that has to run for these arrays; 0 if the embedding output is enough."""
    return max((ArrayName.parse(a).block(sizes) for a in arrays), default=0)


def _split(text: str) -> list[dict[str, str]]:
    items: list[dict[str, str]] = []
    for part in (p.strip() for p in text.split(",")):
        what, equals, layers = (p.strip() for p in part.partition("="))
        if equals:
            if what not in get_args(What):
                raise InputError(
                    f"cannot capture {quoted(what)} (in {quoted(text)}); possible are "
                    f"{', '.join(get_args(What))}"
                )
            items.append({"what": what, "layers": ""})
        elif not items or "at" in items[-1]:
            raise InputError(
                f"{quoted(part)} in the capture {quoted(text)} follows no WHAT=; write WHAT=LAYERS@AT, "
                f"e.g. {quoted(EXAMPLE)}"
            )
        else:
            layers = part
        layers, at_sign, at = (p.strip() for p in layers.partition("@"))
        if at_sign:
            if at not in get_args(At):
                raise InputError(
                    f"'@{at}' in the capture {quoted(text)} is unknown; possible are "
                    f"{', '.join('@' + a for a in get_args(At))}"
                )
            items[-1]["at"] = at
        before = items[-1]["layers"]
        items[-1]["layers"] = f"{before},{layers}" if before else layers
    return items


def _order(name: ArrayName) -> tuple[str, float]:
    layer = float("inf") if name.index == "final" else float(name.index)
    return name.text.rsplit("/", 1)[0], layer
