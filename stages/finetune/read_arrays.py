"""The arrays that a `layer` of a head names, of which a live backbone gives the mean."""

from pydantic import ValidationError

from permafrost.stages.extraction.capture import ArrayName, CaptureItem, in_order
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def arrays_of(layer: str, sizes: BackboneSizes) -> tuple[ArrayName, ...]:
    """The arrays that a `layer` names: one, such as `hidden/6`, or several of one kind, such as
    `values/half`, in ascending order. Layers are written as in `capture`.

    Raises:
        InputError: no such arrays, or the backbone does not have them.
    """
    what, _, layers = layer.partition("/")
    if what == "pooled":
        name = ArrayName.parse(layer)
        name.require(sizes)
        return (name,)
    try:
        item = CaptureItem.model_validate({"what": what, "layers": layers})
    except ValidationError:
        raise InputError(
            f"{quoted(layer)} is no layer that can be computed; write one, such as hidden/6, hidden/final or "
            "pooled/hidden_last/6, or several, which are averaged, such as values/half or values/4-6,9"
        ) from None
    return tuple(ArrayName.parse(name) for name in in_order(n.text for n in item.names(sizes)))
