"""Extracts a corpus into a home on an object store; test_kill_object_home.py kills it.

python extract_to_object_store.py MODEL_FOLDER URL N_TEXTS
"""

import random
import sys
from pathlib import Path

from permafrost.flows.home import open_home
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.storage.features.layout import Axes
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress

AXES = Axes(segment_tokens=256, segment_texts=32)
WORDS = ("snow", "ice", "frost", "lake", "river", "cold", "warm", "melts", "night", "sun", "wind")


def corpus(n: int) -> list[str]:
    """`n` distinct texts of 2 to 25 words, always the same."""
    rng = random.Random(0)
    found: dict[str, None] = {}
    while len(found) < n:
        found[" ".join(rng.choices(WORDS, k=rng.randint(2, 25)))] = None
    return list(found)


def target_of(model: Path) -> ExtractTarget:
    """Four arrays of a backbone."""
    config = ExtractConfig(
        backbone=BackboneConfig(source=str(model)),
        capture=parse_capture("hidden=1-2,values=2,attention_rows=2"),
    )
    return resolve_target(config)


def main(model: Path, url: str, n_texts: int) -> None:
    """One extraction."""
    texts = corpus(n_texts)
    extract(
        target_of(model),
        open_home(url, SilentProgress()),
        texts,
        [text_digest(t) for t in texts],
        ExtractRuntime(device="cpu", batch_tokens=128, block_texts=64),
        SilentProgress(),
        axes=AXES,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
