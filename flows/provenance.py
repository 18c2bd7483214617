"""What made an artifact: recorded in its manifest, never part of its key."""

import os
import platform
import socket
from typing import Any

import torch


def provenance() -> dict[str, Any]:
    """Library versions, host and process."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
