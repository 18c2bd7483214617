"""What a DAG is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from storage.artifacts import ArtifactSpec, Draft
from storage.fingerprint import CodeFingerprint, fingerprint
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


@dataclass(frozen=True)
class Node:
    """One stage run: what it is, what its key is made of, and how to make it."""

    level: Level
    label: str
    spec: ArtifactSpec
    make: Callable[[Draft, Progress], None]


def code_of(entry: Callable[..., Any]) -> CodeFingerprint:
    """The project functions that a stage's entry reaches."""
    return fingerprint(entry, PACKAGES)
