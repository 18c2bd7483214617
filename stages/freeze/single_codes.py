"""The codes of trained heads as latents of a head on top of them.

Source: FREEZE!'s released code has an MLP over the scores of encoders that were each trained alone, one for
each layer. Such a score is a function of the cosine of two codes, so that an MLP on the cosines is one on
the scores. We differ: the codes are not trained further, cosines are standardised by train's mean and
deviation, and the MLP has one hidden layer, where the released one has three.
Axes: n texts, h heads, l layers that a head reads, d d_model, e width of a code.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float32

from permafrost.stages.freeze.latents import gather
from permafrost.stages.freeze.pair_heads import Unified

_TEXTS_AT_A_TIME = 256


@torch.no_grad()
def single_codes(
    heads: Sequence[Unified],
    latents: Float32[np.ndarray, "n l d"],
    places: Sequence[Sequence[int]],
    device: str = "cpu",
) -> Float32[np.ndarray, "n h e"]:
    """One vector per text and head; narrower codes end in zeros, which change no cosine.

    Args:
        heads: trained, dropout off.
        latents: of every layer that any of them reads.
        places: for each head, where its layers stand among these.
        device: where to compute.
    """
    by_head: list[np.ndarray] = []
    for head, own in zip(heads, places, strict=True):
        moved = head.to(torch.device(device))
        parts = [
            moved.embed(moved.scaling(gather(latents[:, list(own)], texts, torch.device(device))))
            .cpu()
            .numpy()
            for texts in np.array_split(
                np.arange(len(latents)), max(1, -(-len(latents) // _TEXTS_AT_A_TIME))
            )
        ]
        by_head.append(np.concatenate(parts))
    width = max(codes.shape[1] for codes in by_head)
    padded = [np.pad(codes, ((0, 0), (0, width - codes.shape[1]))) for codes in by_head]
    return np.stack(padded, axis=1).astype(np.float32)
