"""Gradient checkpointing of a frozen backbone: its blocks are computed again on the way back.

transformers' own is tied to training mode, in which dropout is on; a frozen backbone stays in evaluation
mode.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.utils.checkpoint import checkpoint

from permafrost.stages.extraction.backbone import Backbone


@contextmanager
def recomputing(backbone: Backbone) -> Iterator[None]:
    """In the body, each block keeps its input only. One thread at a time may run the backbone."""
    blocks = backbone.family.block_list(backbone.model)
    for block in blocks:
        # Nothing is drawn, so no state of generators has to be kept.
        block.forward = partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
        )
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
