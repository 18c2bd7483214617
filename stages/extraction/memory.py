"""Memory of an extraction: batches that do not fit are halved, and what the C library keeps is given back.

A pass allocates hundreds of arrays whose sizes change a little from batch to batch. glibc keeps what is
freed for the next one, which rarely fits, so the heap grows for as long as the batches come although less
and less of it is in use. Giving pages back costs some time, as the next pass takes them again.
"""

import ctypes
import resource
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from permafrost.stages.extraction.recipes import Encoded
from permafrost.storage.errors import PermafrostError

_T = TypeVar("_T")
_MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Messages of allocations that failed outside torch's allocator of device memory, which has its own
exception."""
SLACK_BYTES = 16 << 20
"""Growth at which free pages are given back: about once a batch. A pass of a small backbone takes 75 MiB of
them again, 2 to 4 % of its time; with more slack the peak grows with the texts (docs/LOG.md)."""
_SIZES = Path("/proc/self/statm")


class Splitter:
    """Runs batches whole or in parts, and remembers from which size on they did not fit."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.too_large: int | None = None
        """The smallest padded size in tokens that ran out of memory; None if none did."""

    def results(self, encoded: Encoded, compute: Callable[[Encoded], _T]) -> Iterator[_T]:
        """`compute` of the batch, or of its parts in their order.

        Args:
            encoded: texts of one batch.
            compute: leaves nothing behind when it runs out of memory.

        Raises:
            PermafrostError: a text does not fit even by itself.
        """
        n_texts, longest = len(encoded), int(encoded.token_ids.lengths.max())
        size = n_texts * longest
        if n_texts == 1 or self.too_large is None or size < self.too_large:
            done, reason = self._tried(encoded, compute)
            if reason is None:
                yield from done
                return
            if n_texts == 1:
                raise PermafrostError(
                    f"one text of {longest:,} tokens alone does not fit in the memory of {self._device} "
                    f"({reason}); what was committed stays. Use a smaller max_length, compute in a narrower "
                    f"--dtype (bfloat16), capture fewer layers, or stop what else uses this device"
                )
            self.too_large = size
        middle = n_texts // 2
        for part in (np.arange(middle), np.arange(middle, n_texts)):
            yield from self.results(encoded.take(part), compute)

    def _tried(
        self, encoded: Encoded, compute: Callable[[Encoded], _T]
    ) -> tuple[list[_T], str | None]:
        """The result, or why there was no memory for it."""
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
    """Gives free pages of the heap back once this process has grown by SLACK_BYTES since it last did.

    Changes no setting of the C library; does nothing where it cannot trim (musl, macOS).
    """

    def __init__(self) -> None:
        self._least = _own_bytes()
        """The smallest this process was since pages were given back."""

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
    """Resident memory that no file stands behind; 0 where the system does not tell."""
    try:
        _, resident, shared, *_ = map(int, _SIZES.read_text().split())
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()


@cache
def _trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
