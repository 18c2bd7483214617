"""As much of a batch at a time as fits in memory."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from permafrost.stages.extraction.memory import is_out_of_memory
from permafrost.storage.errors import PermafrostError

_T = TypeVar("_T")


class Fitting:
    """How many items of a batch are computed at a time: half as many after each failure, for good."""

    def __init__(
        self, model: nn.Module, device: torch.device, at_a_time: int | None, item: str
    ) -> None:
        """Args: model: whose buffers are put back before another try. at_a_time: at first; None for whole
        batches. item: what one item is, for messages."""
        self.at_a_time = at_a_time
        self._model, self._device, self._item = model, device, item

    def run(self, n_items: int, compute: Callable[[int | None], _T]) -> _T:
        """`compute` with as many of `n_items` at a time as fit.

        Raises:
            PermafrostError: an item does not fit even by itself.
        """
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        while True:
            try:
                return compute(self.at_a_time)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).strip().partition("\n")[0][:100] or "out of memory"
            # Not inside the handler, where the error still holds the frames and with them the tensors.
            tried = min(self.at_a_time or n_items, n_items)
            if tried == 1:
                raise PermafrostError(
                    f"{self._item} alone does not fit in the memory of {self._device} ({reason}); what was "
                    "trained so far is kept. Use a smaller max_length, compute in a narrower dtype, set "
                    "optim.activations: recomputed, or free memory of this device"
                )
            self.at_a_time = (tried + 1) // 2
            with torch.no_grad():
                for name, buffer in self._model.named_buffers():
                    buffer.copy_(buffers[name])
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
