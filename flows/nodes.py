"""What a DAG is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from storage.artifacts import ArtifactSpec, Draft
from storage.fingerprint import fingerprint
from storage.progress import Progress

PACKAGES = ("stages", "storage")
"""Packages whose functions count in a code fingerprint; flows only wire."""

Level = Literal["corpus", "extract", "backbone", "pretrain", "fit", "score", "evaluate", "report"]
LEVELS: tuple[Level, ...] = (
    "corpus",
    "extract",
    "backbone",
    "pretrain",
    "fit",
    "score",
    "evaluate",
    "report",
)
"""Order of execution; nodes of one level are independent of each other. `backbone` holds probes that need
what no store keeps, and run the backbone for it. `fit` also holds what is made from features without
training: controls, vectors and probes."""


def _nothing() -> None:
    """Nothing can be told ahead."""


@dataclass(frozen=True)
class Node:
    """One stage run: what it is, what its key is made of, and how to make it."""

    level: Level
    label: str
    spec: ArtifactSpec
    make: Callable[[Draft, Progress], None]
    check: Callable[[], None] = _nothing
    """Raises what `make` would raise of wrong input, as far as configs and corpora tell; writes nothing."""


def score_summary(metrics: Mapping[str, Any], **names: str | int) -> dict[str, Any]:
    """What the manifest of a score says: of what it is, the metric, and its value on dev and test."""
    return {**names, **{k: metrics[k] for k in ("metric", "dev", "test")}}


def code_of(*entries: Callable[..., Any]) -> dict[str, str]:
    """The project functions that a stage reaches, `module:name` to digest.

    Args:
        entries: the stage's own, and what reads its input where that is handed to it: a reader of features
            or a file of an earlier stage. It is known to the stage as a protocol only.
    """
    found: dict[str, str] = {}
    for entry in entries:
        found |= fingerprint(entry, PACKAGES).definitions
    return dict(sorted(found.items()))
