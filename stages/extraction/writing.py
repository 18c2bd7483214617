"""Captured rows on their way to disk: cast to the storage dtype in reused buffers, written by a thread."""

import math
import mmap
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.extraction.non_finite import NonFiniteError
from permafrost.storage.errors import OverflowRangeError
from permafrost.storage.features.identity import FloatName
from permafrost.storage.features.receipts import Statistics
from permafrost.storage.features.segment_drafts import SegmentDraft

Storable = dict[str, tuple[NDArray[Any], Statistics]]
"""Rows in the storage dtype on the host and their statistics, by array."""
IN_FLIGHT = 3
"""Maximum batches of captured rows at a time: one is computed, one waits, one is written."""

WRITERS = {"cpu": 1, "cuda": 8}
"""Arrays that are written at a time, by device of the backbone; one on a CPU, whose cores it needs."""


class RowBuffers:
    """The captured rows of one batch on the host.

    Rows are cast and copied as soon as a block has computed them, so only one array at a time exists in the
    compute dtype. The next batch reuses the buffers. Nothing that a forward pass allocates outlives it:
    survivors would leave holes in the heap that later batches, of other shapes, do not fit into.
    """

    def __init__(self, dtype: FloatName, n_rows: int, device: torch.device) -> None:
        """Args: dtype: of the storage. n_rows: enough for most batches. device: of the backbone."""
        self._dtype, self._n_rows, self._device = dtype, n_rows, device
        self._pinned = device.type == "cuda"
        self._rows: dict[str, Tensor] = {}
        self._moments: dict[str, Tensor] = {}
        """Minimum, maximum, mean and sum of squares of the computed rows, on the device."""
        self._kept: dict[str, int] = {}

    def clear(self) -> None:
        """Forget the rows of the last batch; their memory stays."""
        self._kept.clear()

    def keep(self, name: str, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Copy the rows of an array and return the copy; does not wait for the device."""
        flat = rows.reshape(-1).float()
        # Cast on the device, so that fewer bytes cross the bus.
        narrow = rows.to(getattr(torch, self._dtype))
        host = self._room(name, narrow).copy_(narrow, non_blocking=self._pinned)
        low, high = torch.aminmax(flat)
        self._moments[name].copy_(torch.stack([low, high, flat.mean(), torch.dot(flat, flat)]))
        self._kept[name] = len(rows)
        return host

    def storable(self) -> Storable:
        """The rows of every array that was kept, valid until the buffers are used again.

        Raises:
            OverflowRangeError: a finite activation is too large for the dtype.
            NonFiniteError: the backbone itself produced NaN or infinity.
        """
        storable: Storable = {}
        for name, n_rows in self._kept.items():
            host = self._rows[name][:n_rows]
            # Reading the moments waits for the device, and so for the copy before them.
            moments = self._moments[name].tolist()
            statistics = _statistics(name, moments, host.numel(), self._dtype)
            bits = host.view(torch.uint16) if self._dtype == "bfloat16" else host
            storable[name] = bits.numpy(), statistics
        return storable

    def _room(self, name: str, rows: Tensor) -> Tensor:
        have = self._rows.get(name)
        if have is None or len(have) < len(rows):
            n_rows = max(len(rows), self._n_rows)
            shape = (n_rows, *rows.shape[1:])
            have = _pages(shape, rows.dtype, self._pinned)
            self._rows[name] = have
            self._moments[name] = torch.empty(4, device=self._device)
        return have[: len(rows)]


class DiskThread:
    """Runs write jobs in order, at most one job behind the computation; the first error stops the run.

    Once a job is accepted, all but the last `IN_FLIGHT - 1` are done, and their buffers may be overwritten.
    """

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=IN_FLIGHT - 2)
        self._drafts: list[SegmentDraft] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="permafrost-disk", daemon=True)

    def owns(self, draft: SegmentDraft) -> None:
        """Take charge of `draft`: it is dropped at the end unless it was sealed."""
        self._drafts = [d for d in self._drafts if d.is_open]
        self._drafts.append(draft)

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; waits while the disk is behind.

        Raises:
            Exception: whatever an earlier job failed with.
        """
        if self._error is not None:
            raise self._error
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._error is None:
                try:
                    job()
                except BaseException as error:
                    self._error = error
            # Otherwise the job, with the buffers it holds, would stay alive until the next one arrives.
            del job

    def __enter__(self) -> "DiskThread":
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._jobs.put(None)
        self._thread.join()
        for draft in self._drafts:
            draft.abandon()
        if self._error is not None and error is None:
            raise self._error


def _pages(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> Tensor:
    """Memory outside the heap, which it would fragment."""
    if pinned:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    n_values = math.prod(shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, n_values * dtype.itemsize, flags=flags)
    return torch.frombuffer(pages, dtype=dtype, count=n_values).view(shape)


def _statistics(name: str, moments: list[float], count: int, dtype: str) -> Statistics:
    low, high, mean, total = moments
    if not (np.isfinite(low) and np.isfinite(high)):
        raise NonFiniteError(name)
    limit = torch.finfo(getattr(torch, dtype)).max
    largest = max(abs(low), abs(high))
    if largest > limit:
        raise OverflowRangeError(
            f"{name} holds the activation {low if -low == largest else high:.6g}, beyond the range of "
            f"{dtype} (±{limit:.6g}); nothing of this segment was stored. Set the storage "
            f"dtype to bfloat16 or float32 (--store-dtype bfloat16)"
        )
    variance = max(total / max(count, 1) - mean * mean, 0.0)
    return Statistics(count=count, mean=mean, variance=variance, min=low, max=high)
