"""How many texts go through the backbone at a time."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.storage.features.layout import array_spec

CPU_BATCH_TOKENS = 2048
"""Maximum padded tokens of a batch on a CPU: larger ones fall out of its caches and are slower, even
without captures (benchmarks/extraction.py)."""


PORTION_TOKENS = 1 << 13
"""Texts of a segment are tokenised together until they have this many tokens."""


def batch_tokens(
    target: ExtractTarget, captured: Sequence[str], runtime: ExtractRuntime, device: torch.device
) -> int:
    """Padded tokens per batch, so that three batches of captured rows (one being computed, one queued,
    one being written) stay under `buffer_bytes`."""
    specs = [array_spec(a, target.store_sizes, "float32") for a in captured]
    row_bytes = sum(s.row_bytes for s in specs)
    bound = runtime.buffer_bytes // max(3 * row_bytes, 1)
    limit = CPU_BATCH_TOKENS if device.type == "cpu" else runtime.batch_tokens
    return max(min(runtime.batch_tokens, bound, limit), 1)


def batches(lengths: NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Contiguous runs of texts whose padded size stays under `budget` tokens."""
    start, longest = 0, 0
    for i, n in enumerate(lengths.tolist()):
        longest = max(longest, n)
        if i > start and longest * (i + 1 - start) > budget:
            yield np.arange(start, i)
            start, longest = i, n
    yield np.arange(start, len(lengths))


def portions(
    lengths: NDArray[np.int64], budget: int
) -> Iterator[tuple[int, list[NDArray[np.int64]]]]:
    """The `batches` of texts in groups of about PORTION_TOKENS tokens, each with its first text."""
    group: list[NDArray[np.int64]] = []
    used = 0
    for indices in batches(lengths, budget):
        group.append(indices)
        used += int(lengths[indices].sum())
        if used >= PORTION_TOKENS:
            yield int(group[0][0]), group
            group, used = [], 0
    if group:
        yield int(group[0][0]), group
