"""A file's texts stay in Arrow from the file to the extraction, each once."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.flows.texts import extraction
from permafrost.flows.texts.embedding import (
    ByMethod,
    ExtractContext,
    Made,
    embed_config,
    embed_texts,
)
from permafrost.stages.corpus.texts import read_texts
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.texts import Texts

TEXTS = ["ice", "snow", "ice", "lake", "snow"]
ONCE = ["ice", "snow", "lake"]
CONFIG = ExtractConfig(backbone=BackboneConfig(source="x"), capture=parse_capture("hidden=1"))


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path)
    return read_texts(str(path))


def _require_once(texts: Sequence[str], digests: Sequence[str]) -> None:
    assert isinstance(texts, Texts)
    assert isinstance(digests, Texts)
    assert texts == ONCE
    assert digests == [text_digest(t) for t in ONCE]


def test_extract(texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(extraction, "resolve_target", lambda config: config)
    monkeypatch.setattr(extraction, "extract", lambda *args, **_: asked.append(args))
    extraction.extract_texts(
        CONFIG, texts, tmp_path, ExtractRuntime(), lambda label: SilentProgress()
    )
    ((_, _, unique, digests, *_),) = asked
    _require_once(unique, digests)


def test_embed(texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(how: object, unique: Any, place: object) -> object:
        _require_once(unique.texts, unique.digests)
        report = SimpleNamespace(store=SimpleNamespace(store_id="x"), n_truncated=0)
        vectors = np.array([[1.0], [2.0], [3.0]], np.float32)
        return Made(vectors, [report], {}, 0)  # type: ignore[list-item]

    monkeypatch.setattr(ByMethod, "_of_unique", made)
    config = embed_config(method="mean", layers="last", of="hidden")
    output = tmp_path / "out.parquet"
    place = ExtractContext(tmp_path, ExtractRuntime(), lambda label: SilentProgress())
    embed_texts(ByMethod(CONFIG, config, None), texts, output, place)
    table = pq.read_table(output)
    assert table.schema.field("text").type == pa.large_string()
    assert table.column("text").to_pylist() == TEXTS
    assert table.column("embedding").to_pylist() == [[1], [2], [1], [3], [2]]
