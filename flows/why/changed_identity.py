"""Differences between backbones and stores, in the words of an experiment."""

import re
from collections.abc import Callable, Sequence

from permafrost.flows.why.changed_fields import Change, Leaf, said, shown

_FIELDS = {
    "compute_dtype": "backbone.dtype",
    "max_length": "backbone.max_length",
    "storage_dtype": "store_dtype",
}
_OWN = {"weights_digest", "tokenizer_digest", "layer_semantics", "format_version", *_FIELDS}
_INSIDE = re.compile(r"(?:^|.*\.)(?:store|backbone|stores\.[^.]+\[\d+\])\.(?P<field>.+)")
SourceOf = Callable[[str], str | None]
"""From the digest of weights to where the backbone was looked for, if that is known."""


def identity_field(path: str) -> str | None:
    """The field of a store's or a backbone's identity that a path of a config ends in; None for others."""
    match = _INSIDE.fullmatch(path)
    field = path if match is None else match["field"]
    if field in _OWN or (match is not None and field.startswith("recipe.")):
        return field
    return None


def identity_changes(leaves: Sequence[Leaf], recipe: str, source_of: SourceOf) -> list[Change]:
    """What differs between two identities.

    Args:
        leaves: fields of an identity that differ.
        recipe: name of the recipe in the experiment; empty for its own.
        source_of: names of backbones.
    """
    by_field = {leaf.path: leaf for leaf in leaves}
    changes: list[Change] = []
    weights = by_field.pop("weights_digest", None)
    tokenizer = by_field.pop("tokenizer_digest", None)
    if weights is not None and _base(weights.old) != _base(weights.new):
        changes.append(_backbone(weights, source_of))
    elif tokenizer is not None:
        changes.append(Change("backbone: other tokenizer files", "backbone.source"))
    for field, leaf in by_field.items():
        if field in ("layer_semantics", "format_version"):
            changes.append(Change("stores of another format", field, leaf.old, leaf.new))
        else:
            within = field.replace("recipe.", f"recipes.{recipe}." if recipe else "recipe.", 1)
            path = _FIELDS.get(field, within if field.startswith("recipe.") else field)
            changes.append(said("", Leaf(path, leaf.old, leaf.new)))
    return changes


def _base(digest: object) -> str:
    """Of the weights that were tuned, of an adapted backbone before it is trained."""
    return str(digest).partition(" ")[0]


def _backbone(leaf: Leaf, source_of: SourceOf) -> Change:
    old, new = source_of(_base(leaf.old)), source_of(_base(leaf.new))
    if old and new and old != new:
        text = f"backbone {shown(old)} -> {shown(new)} (other weights)"
    else:
        text = f"backbone {shown(new)}: other weights" if new else "other backbone"
    return Change(text, "backbone.source", old, new)
