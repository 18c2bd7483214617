"""Batches that do not fit in memory are halved, and the run goes on."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

from permafrost.stages.extraction.recipes import Encoded
from permafrost.storage.errors import PermafrostError

_T = TypeVar("_T")

_SAID_BY_TORCH = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Messages of allocations that failed outside torch's allocator of device memory, which has its own
exception."""


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID_BY_TORCH)
