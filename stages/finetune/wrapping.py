"""Something around every block of a backbone, for the length of a pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]


@contextmanager
def wrapped(blocks: Sequence[nn.Module], wrap: Callable[[int, Forward], Forward]) -> Iterator[None]:
    """In the body, each block computes `wrap(its number, its forward)`. One thread at a time may run them.

    Args:
        blocks: of a backbone, in order.
        wrap: numbers are from 0.
    """
    # One that stands around already is kept, and put back.
    before = [vars(block).get("forward") for block in blocks]
    for number, block in enumerate(blocks):
        block.forward = wrap(number, block.forward)
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward
