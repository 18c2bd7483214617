"""Gradient checkpointing of a backbone: its blocks are computed again on the way back.

transformers' own is tied to training mode, in which dropout is on; a backbone stays in evaluation mode.
"""

from contextlib import AbstractContextManager
from functools import partial

from torch.utils.checkpoint import checkpoint

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.finetune.wrapping import Forward, wrapped


def recomputing(backbone: Backbone, n_blocks: int | None = None) -> AbstractContextManager[None]:
    """In the body, each of the first `n_blocks` (None: all) keeps its input only. One thread at a time may
    run the backbone."""

    def again(_: int, forward: Forward) -> Forward:
        # What adapters draw comes from generators that are seeded anew, see `Tuned.drawing`, so no state of
        # generators has to be kept.
        return partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)

    return wrapped(backbone.family.block_list(backbone.model)[:n_blocks], again)
