"""Heads whose width is to match the number of trained parameters of another method's head."""

from collections.abc import Callable, Mapping
from typing import Any

from permafrost.stages.heads.head import Head
from permafrost.stages.heads.mlp import MlpHead, matched_hidden
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_MATCH = "match "


def matched_methods(
    methods: Mapping[str, Any], width: Callable[[str], int]
) -> dict[str, dict[str, Head]]:
    """The fields to replace in methods whose head has `hidden: match NAME`, by the name of the method.

    Counted are the parameters of the two heads without classifiers, each on the layer that its method
    reads, as given and not as a grid varies it.

    Args:
        methods: of an experiment; those with a head have the fields `head` and `layer`.
        width: numbers in a row of an array, by its name.

    Raises:
        InputError: there is no method of that name, it has no head of a width of its own, or even the
            narrowest head has more parameters.
    """
    return {
        name: {"head": _matched(name, method, methods, width)}
        for name, method in methods.items()
        if _is_matched(getattr(method, "head", None))
    }


def require_widths_of_a_grid(grid: Mapping[str, Any]) -> None:
    """Check that no value of a grid is a width to match, which only the method's own head may have.

    Raises:
        InputError: one is.
    """
    for field, values in grid.items():
        for value in values:
            width = value.get("hidden") if field == "head" and isinstance(value, dict) else value
            is_width = field in ("head", "head.hidden") and isinstance(width, str)
            if is_width and str(width).startswith(_MATCH):
                raise InputError(
                    f"grid.{field} has the width {quoted(width)}, and a grid has numbers only; give the "
                    "number, or a method of its own with head.hidden so"
                )


def _is_matched(head: Any) -> bool:
    return isinstance(head, MlpHead) and isinstance(head.hidden, str)


def _matched(
    name: str, method: Any, methods: Mapping[str, Any], width: Callable[[str], int]
) -> Head:
    import torch

    from permafrost.stages.heads.pooling import build_pooling

    wanted = method.head.hidden.removeprefix(_MATCH)
    where = f"methods.{name}.head.hidden is {quoted(method.head.hidden)}"
    if wanted not in methods:
        raise InputError(
            f"{where}, but there is no method {quoted(wanted)}; there are {', '.join(methods)}"
        )
    other = methods[wanted]
    head = getattr(other, "head", None)
    if not isinstance(head, Head) or not hasattr(other, "layer") or _is_matched(head):
        raise InputError(
            f"{where}, but {quoted(wanted)} has no head of a width of its own; name a method of kind head "
            "or finetuned whose head says its width"
        )
    n_parameters = build_pooling(head, width(other.layer), torch.Generator()).n_parameters
    hidden = matched_hidden(width(method.layer), n_parameters, method.head.n_layers)
    return method.head.model_copy(update={"hidden": hidden})
