"""Layers that experiments name from the end: `hidden/last`, `hidden/-2`, `layers: -2`; and HTP's, `htp`."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel

from permafrost.stages.extraction.capture import FROM_THE_END, from_the_start
from permafrost.stages.extraction.presets import htp_settings
from permafrost.stages.extraction.sizes import BackboneSizes

Model = TypeVar("Model", bound=BaseModel)

_LAST = re.compile(
    r"(hidden|values|attention_rows|pooled/(?:hidden|values)_(?:readout|mean|sum|last))"
    rf"/(last|{FROM_THE_END})"
)
_LAYERS = "layers"
"""The fields that select layers as text."""


def last_layer(what: str, sizes: BackboneSizes) -> str:
    """The index of the last layer, as in the name of an array: `final` or the number of blocks.

    Args:
        what: `hidden`, or what belongs to blocks and has nothing behind the final norm.
        sizes: of the backbone.
    """
    return "final" if what == "hidden" and sizes.has_final_norm else str(sizes.n_layers)


def with_last_named(value: Any, sizes: BackboneSizes) -> Any:
    """A config with `hidden/last` and its like replaced by the arrays that a backbone of these sizes has, and
    blocks that are counted from the end (`hidden/-2`, `layers: -2`), or named after HTP, by their numbers.

    Args:
        value: a frozen config, or what its fields hold; keys of mappings stay.
        sizes: of the backbone.

    Returns:
        The same object where it names none.

    Raises:
        InputError: it counts further from the end than there are blocks, or HTP says nothing of the backbone.
    """
    if isinstance(value, str):
        found = _LAST.fullmatch(value)
        if found is None:
            return value
        if found[2] != "last":
            return f"{found[1]}/{from_the_start(found[2], sizes)}"
        what = "hidden" if "hidden" in found[1] else "values"
        return f"{found[1]}/{last_layer(what, sizes)}"
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        changed = {
            name: new
            for name, old in fields.items()
            if (new := (_numbered if name == _LAYERS else with_last_named)(old, sizes)) is not old
        }
        return replaced(value, changed) if changed else value
    if isinstance(value, Mapping):
        values = {name: with_last_named(old, sizes) for name, old in value.items()}
        return value if all(values[name] is value[name] for name in values) else values
    if isinstance(value, tuple | list):
        items = [with_last_named(old, sizes) for old in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else type(value)(items)
    return value


def _numbered(layers: Any, sizes: BackboneSizes) -> Any:
    """A selection of layers, or several, with numbers in the place of `-2` and `htp`."""
    if isinstance(layers, tuple):
        items = tuple(_numbered(one, sizes) for one in layers)
        same = all(new is old for new, old in zip(items, layers, strict=True))
        return layers if same else items
    if not isinstance(layers, str):
        return with_last_named(layers, sizes)
    parts = layers.split(",")
    found = [
        str(htp_settings(sizes).layer) if part == "htp" else from_the_start(part, sizes)
        for part in parts
    ]
    return layers if found == parts else ",".join(found)


def replaced(model: Model, fields: dict[str, Any]) -> Model:
    """A copy with other fields; what was computed from the old ones is not copied."""
    copy = model.model_copy(update=fields)
    for parent in type(model).__mro__:
        for name, attribute in vars(parent).items():
            if isinstance(attribute, cached_property):
                vars(copy).pop(name, None)
    return copy
