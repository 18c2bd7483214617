"""Where a fit that was killed finds its checkpoint."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.storage.drafts import DRAFT_PREFIX

if TYPE_CHECKING:
    from permafrost.stages.fit.checkpoint import Checkpoint

CHECKPOINT_EVERY_S = 15.0
"""Work that a killed fit loses, at most, beyond the epoch it was in."""


@contextmanager
def checkpoint_file(node: Node, context: RunContext) -> Iterator[Path]:
    """The file for the checkpoint of a node, which is gone once its result was saved.

    It is named by the artifact's key, which code is part of; a draft, so that it stays on this machine and
    garbage collection finds what a killed run left.
    """
    folder = context.artifacts.root / node.stage / f"{DRAFT_PREFIX}{node.ref.key}-checkpoint"
    yield folder / "fit.pt"
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def device_checkpoint(node: Node, context: RunContext) -> "Iterator[Checkpoint]":
    """The same of a fit that draws on its device: the key covers config, data and code, and dropout draws
    otherwise on another kind of device."""
    from permafrost.stages.fit.checkpoint import Checkpoint

    with checkpoint_file(node, context) as path:
        yield Checkpoint(path, f"{node.id} {context.device.partition(':')[0]}", CHECKPOINT_EVERY_S)
