"""The stored arrays of what enters blocks, from which the rest of a pass runs."""

from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError


def entering_array(n_blocks: int, sizes: BackboneSizes) -> str:
    """The stored array of what enters the first of the last `n_blocks` blocks, one row per token."""
    return ArrayName("hidden", None, sizes.n_layers - n_blocks).text


def require_above(n_blocks: int, array: str, sizes: BackboneSizes) -> None:
    """Raises: InputError: an array that is read is not made by the last `n_blocks` blocks."""
    last_below = sizes.n_layers - n_blocks
    if ArrayName.parse(array).block(sizes) <= last_below:
        raise InputError(
            f"the head reads {array}, but with below: cached the first block that runs is "
            f"{last_below + 1} of {sizes.n_layers}, so nothing that is trained would reach it; read "
            f"hidden/{last_below + 1} or a later one, train more blocks, or use a cached head (kind head)"
        )


def entering_arrays(sizes: BackboneSizes) -> tuple[str, ...]:
    """The stored arrays of what enters blocks 1..L, one row per token."""
    return tuple(ArrayName("hidden", None, k).text for k in range(sizes.n_layers))
