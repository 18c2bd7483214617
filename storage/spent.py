"""How long work on an artifact took before the process that ends it began: kept beside its checkpoint."""

import contextlib
from pathlib import Path

_NAME = "seconds"


def record_spent(checkpoint: Path, before: float, now: float) -> None:
    """Record beside a checkpoint file, which is in its folder, the seconds of the processes before this one,
    and of this one so far. It is an account of times only: what is lost or half-written counts as none."""
    with contextlib.suppress(OSError):
        checkpoint.with_name(_NAME).write_text(f"{before:.3f} {now:.3f}\n", encoding="utf-8")


def forget_spent(checkpoint: Path) -> None:
    """What is beside a checkpoint that is not gone on from counts for nothing."""
    checkpoint.with_name(_NAME).unlink(missing_ok=True)


def spent_before(folder: Path) -> float:
    """Seconds of the processes before the one that wrote last into this folder of checkpoints."""
    return _read(folder)[0]


def spent(folder: Path) -> float:
    """Seconds up to the checkpoint in this folder."""
    return sum(_read(folder))


def _read(folder: Path) -> tuple[float, float]:
    try:
        before, now = (folder / _NAME).read_text(encoding="utf-8").split()
        return float(before), float(now)
    except (OSError, ValueError):
        return 0.0, 0.0
