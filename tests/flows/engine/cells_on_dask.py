"""Runs an experiment as a notebook does: in a cell inside an event loop, interrupted, and once more.

python cells_on_dask.py EXPERIMENT HOME
"""

import asyncio
import sys

import permafrost
from permafrost.storage.features import store
from permafrost.storage.features.layout import Axes

# Many segments of few texts.
store.choose_axes = lambda *_: Axes(segment_tokens=256, segment_texts=32)


async def cell() -> None:
    """What a kernel awaits; an interrupt is a KeyboardInterrupt inside of it."""
    try:
        result = permafrost.run(sys.argv[1], home=sys.argv[2], engine="dask")
    except KeyboardInterrupt:
        sys.stdout.write("interrupted\n")
    else:
        sys.stdout.write(f"{dict(result.computed)}\n")
    sys.stdout.flush()


# As a kernel does it: asyncio.run would take the signal for itself.
loop = asyncio.new_event_loop()
for _ in range(2):
    loop.run_until_complete(cell())
