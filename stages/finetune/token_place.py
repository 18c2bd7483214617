"""Where a graph token stands and where a text's vector is read, and which recipes and backbones allow it."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

TokenPlace = Literal["first", "last"]
"""Where the graph token stands. `last` is a variant of ours for causal decoders, read at the token itself."""


ReadAt = Literal["last", "readout", "mean"]
"""As in the names of pooled arrays. The graph token is not in the mean."""


def state_array(read: ReadAt, sizes: BackboneSizes) -> str:
    """The stored array that holds the same reading of the texts alone, without a graph token."""
    index = "final" if sizes.has_final_norm else sizes.n_layers
    return ArrayName("hidden", read, index).text


def require_fits(recipe: Recipe, sizes: BackboneSizes, place: TokenPlace | None) -> None:
    """Args: place: of the graph token; None for texts alone.

    Raises: InputError: the recipe changes the pass, or the backbone is no causal decoder and the token is to
    stand last."""
    if recipe.rewiring is not None or recipe.intervention is not None or recipe.masks_attention:
        raise InputError(
            f"the recipe {quoted(recipe.kind)} changes the forward pass itself, which training through the "
            "backbone has no place for; use a recipe that only writes the text, such as plain"
        )
    if place == "last" and not sizes.is_decoder:
        raise InputError(
            f"the graph token stands last, which is made for causal decoders, and the backbone is a "
            f"{sizes.model_type} encoder; use graph_token: first"
        )


def require_room_for_token(encoded: Encoded, texts: Sequence[str], sizes: BackboneSizes) -> None:
    """Raises: InputError: a text leaves the backbone no position for a graph token."""
    lengths, room = encoded.token_ids.lengths, sizes.max_positions - 1
    too_long = np.flatnonzero(lengths > room)
    if too_long.size:
        raise InputError(
            f"{too_long.size:,} of {len(texts):,} texts leave no position for the graph token, such as "
            f"{quoted(texts[int(too_long[0])])}: they have {int(lengths.max())} tokens at most, and the "
            f"{sizes.model_type} backbone has {sizes.max_positions} positions, one of which is the graph "
            f"token's; shorten them to {room} tokens, or train with the backbone's max_length set to {room}"
        )
