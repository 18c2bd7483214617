"""Memory of an extraction: batches that do not fit are halved, and free heap pages go back to the system.

A forward pass allocates hundreds of arrays whose sizes change a little from batch to batch. glibc keeps
freed blocks for reuse, but the next batch rarely fits into them, so the heap keeps growing although less
and less of it is in use. Returning pages costs some time, since the next pass has to fault them in again.
"""

import ctypes
import resource
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.storage.errors import PermafrostError

_T = TypeVar("_T")
_MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Messages of failed allocations outside torch's device allocator, which has an exception of its own."""
SLACK_BYTES = 16 << 20
"""Growth after which free pages are returned: about once a batch. The next pass of a small backbone then
faults 75 MiB in again, 2 to 4 % of its time; with more slack the peak grows with the number of texts
(docs/LOG.md)."""
_SIZES = Path("/proc/self/statm")


class Splitter:
    """Runs batches whole or in halves, and remembers the smallest size that did not fit."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.too_large: int | None = None
        """The smallest padded size in tokens that ran out of memory; None if none did."""

    def results(self, encoded: Encoded, compute: Callable[[Encoded], _T]) -> Iterator[_T]:
        """Yield `compute` of the batch, or of its parts in order.

        Args:
            encoded: texts of one batch.
            compute: must leave nothing behind when it runs out of memory.

        Raises:
            PermafrostError: a text does not fit even by itself.
        """
        n_texts, longest = len(encoded), int(encoded.token_ids.lengths.max())
        size = n_texts * longest
        if n_texts == 1 or self.too_large is None or size < self.too_large:
            results, reason = self._try(encoded, compute)
            if reason is None:
                yield from results
                return
            if n_texts == 1:
                raise PermafrostError(
                    f"one text of {longest:,} tokens alone does not fit in the memory of {self._device} "
                    f"({reason}); what was committed stays. Use a smaller max_length, compute in a narrower "
                    f"--dtype (bfloat16), capture fewer layers, or free memory of this device"
                )
            self.too_large = size
        middle = n_texts // 2
        for part in (np.arange(middle), np.arange(middle, n_texts)):
            yield from self.results(encoded.take(part), compute)

    def _try(
        self, encoded: Encoded, compute: Callable[[Encoded], _T]
    ) -> tuple[list[_T], str | None]:
        """The result, or the reason why it ran out of memory."""
        try:
            return [compute(encoded)], None
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).strip().partition("\n")[0][:100]
        # Not inside the handler, where the error still holds the frames and with them the tensors.
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return [], reason or "out of memory"


class Heap:
    """Returns free heap pages to the system whenever this process has grown by SLACK_BYTES.

    Changes no setting of the C library; does nothing where it cannot trim (musl, macOS).
    """

    def __init__(self) -> None:
        self._least = _own_bytes()
        """Smallest size of this process since pages were last returned."""

    def release_if_grown(self) -> None:
        """Call between batches, when little is in use."""
        now, trim = _own_bytes(), _trim()
        self._least = min(self._least, now)
        if trim is not None and now - self._least > SLACK_BYTES:
            trim(0)
            self._least = _own_bytes()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def _own_bytes() -> int:
    """Anonymous resident memory of this process; 0 where the system does not report it."""
    try:
        _, resident, shared, *_ = map(int, _SIZES.read_text().split())
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()


@cache
def _trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
