"""Ranks of tokens among the vocabulary, and what is made of them.

Axes: N vectors, V tokens of the vocabulary, O offsets.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from permafrost.stages.extraction.unembedding import Unembedding
from permafrost.stages.token_prediction.targets import NOWHERE
from permafrost.storage.errors import InputError

_SCORES_AT_A_TIME = 1 << 24
"""64 MB in float32."""


def save_ranked(table: pa.Table, cutoff: int, path: Path) -> None:
    """Write scores that were made of ranks, and the cutoff of these."""
    pq.write_table(table.replace_schema_metadata({"cutoff": str(cutoff)}), path)


def load_ranked(path: Path) -> tuple[pa.Table, int]:
    """Read what `save_ranked` wrote: scores and cutoff."""
    table = pq.read_table(path)
    return table.replace_schema_metadata(None), int(table.schema.metadata[b"cutoff"])


def target_ranks(
    normed: Float[Tensor, "n d"], unembedding: Unembedding, targets: Int64[Tensor, "n o"]
) -> Int64[Tensor, "n o"]:
    """Rank (from 1) of each target among the vocabulary, by the unembedding's scores.

    A token that scores as high as the target stands before it, so that a vector without information
    gains nothing. 0 where there is no target.

    Args:
        normed: vectors after the final norm.
        unembedding: on the same device.
        targets: token ids, or NOWHERE.

    Raises:
        InputError: scores are not finite.
    """
    ranks = torch.zeros_like(targets)
    step = max(_SCORES_AT_A_TIME // len(unembedding.rows), 1)
    for start in range(0, len(normed), step):
        wanted_NO = targets[start : start + step]
        scores_NV = unembedding.scores(normed[start : start + step])
        own_NO = scores_NV.gather(1, wanted_NO.clamp(min=0))
        if not torch.isfinite(own_NO).all():
            raise InputError(
                "scores of the vocabulary are not finite; run the backbone in float32 or bfloat16"
            )
        for o in range(wanted_NO.shape[1]):
            n_before = (scores_NV >= own_NO[:, o : o + 1]).sum(1)
            ranks[start : start + step, o] = n_before * (wanted_NO[:, o] != NOWHERE)
    return ranks


def reciprocal_ranks(ranks: Int64[np.ndarray, " n"], cutoff: int) -> Float[np.ndarray, " n"]:
    """1 / rank, and 0 for ranks beyond the cutoff: their mean is MRR@cutoff."""
    assert (ranks >= 1).all(), "a rank below 1"
    return np.where(ranks <= cutoff, 1.0 / ranks, 0.0)
