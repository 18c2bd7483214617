"""Where a fit that was killed finds its checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node

if TYPE_CHECKING:
    from permafrost.stages.fit.checkpoint import Checkpoint

CHECKPOINT_EVERY_S = 15.0
"""Work that a killed fit loses, at most, beyond the epoch it was in (the step, if it saves between steps); of
large ones that take long to write, 20 times as long as a write takes."""


def checkpoint_file(node: Node, context: RunContext) -> Path:
    """The file for the checkpoint of a node, which is gone once its artifact is published."""
    return context.artifacts.checkpoints(node.ref) / "fit.pt"


def device_checkpoint(node: Node, context: RunContext) -> "Checkpoint":
    """The same of a fit that draws on its device: the key covers config, data and code, and dropout draws
    otherwise on another kind of device."""
    from permafrost.stages.fit.checkpoint import Checkpoint

    kind = context.device.partition(":")[0]
    return Checkpoint(checkpoint_file(node, context), f"{node.id} {kind}", CHECKPOINT_EVERY_S)
