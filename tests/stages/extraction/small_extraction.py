"""Extractions of tiny backbones, and what they stored."""

from pathlib import Path

import numpy as np

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    BackboneFiles,
    load_backbone,
)
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import ExtractReport, extract
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.stages.extraction.tiny_models import TEXTS

AXES = Axes(segment_tokens=64, segment_texts=16)
EVERYTHING = "hidden=all,values=all,attention_rows=all,hidden=2@mean,hidden=3@readout,values=1@mean"
MORE = [f"{text} {word}" for word in ("sun", "wind", "night") for text in TEXTS]
FLOAT16_NOISE = 2e-3
"""Rounding to float16 (2**-11, relative) on activations of order 1, and batching noise of 1e-6."""


class Extraction:
    """An extraction of one tiny backbone into one home, counting what it does."""

    def __init__(self, files: BackboneFiles, home: Path) -> None:
        self.files, self.home = files, home
        self.loads = 0

    def target(self, capture: str, **fields: object) -> ExtractTarget:
        backbone = BackboneConfig(source=str(self.files.folder))
        return resolve_target(
            ExtractConfig.model_validate(
                {"backbone": backbone, "capture": parse_capture(capture), **fields}
            )
        )

    def load(self) -> Backbone:
        self.loads += 1
        return load_backbone(self.files, "float32", "cpu")

    def __call__(
        self, texts: list[str], target: ExtractTarget, runtime: ExtractRuntime | None = None
    ) -> ExtractReport:
        runtime = runtime or ExtractRuntime(device="cpu", batch_tokens=64)
        digests = [text_digest(t) for t in texts]
        return extract(
            target, self.home, texts, digests, runtime, SilentProgress(), axes=AXES, load=self.load
        )


def rows(store: FeatureStore, array: str, text: str) -> np.ndarray:
    reader = open_reader(store, array, [text_digest(text)], budget_bytes=1 << 20, tokens="all")
    return next(reader.in_order(1))[1].data
