"""What an extraction holds at a time does not grow with the number of its texts."""

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction import memory, planning
from permafrost.stages.extraction.backbone import BackboneConfig, BackboneFiles, load_backbone
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.recipes import plain
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime, resolve_target
from permafrost.storage.features.places import Locations
from permafrost.storage.features.receipts import Statistics
from permafrost.storage.features.segment_drafts import SegmentDraft
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.tiny_models import WORDS

TOKENS = 20
N_TEXTS = 1200
"""24,000 tokens of one segment, in 12 batches."""


def run(files: BackboneFiles, home: Path) -> None:
    target = resolve_target(
        ExtractConfig(
            backbone=BackboneConfig(source=str(files.folder)), capture=parse_capture("hidden=0")
        )
    )
    loaded = load_backbone(files, "float32", "cpu")
    # Lengths differ, as what is allocated for batches of one shape is easily used again.
    texts = [
        " ".join(WORDS[(i // 30**j if j < 3 else j) % 30] for j in range(TOKENS - i % 9))
        for i in range(N_TEXTS)
    ]
    digests = [text_digest(t) for t in texts]
    runtime = ExtractRuntime(device="cpu")
    extract(target, home, texts, digests, runtime, SilentProgress(), load=lambda: loaded)


def test_only_part_of_a_segment_is_tokenised_at_a_time(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    tokenise = plain.tokenise

    def counted(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[Encoding]:
        together.append(len(texts))
        return tokenise(tokenizer, texts)

    monkeypatch.setattr(plain, "tokenise", counted)
    run(tiny_files("bert"), tmp_path)
    assert sum(together) >= N_TEXTS
    # 8,192 tokens and a batch more, of texts of 12 words and 2 special tokens at least.
    assert max(together) <= (8192 + 2048) // 14, together


@pytest.mark.parametrize("too_long", ["cut", "refuse"])
def test_texts_are_looked_up_a_block_at_a_time(
    tiny_files: Callable[[str], BackboneFiles],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    too_long: str,
) -> None:
    together: list[int] = []
    locate = FeatureStore.locate

    def counted(
        store: FeatureStore, digests: Sequence[str], arrays: Sequence[str] = ()
    ) -> Locations:
        together.append(len(digests))
        return locate(store, digests, arrays)

    monkeypatch.setattr(FeatureStore, "locate", counted)
    monkeypatch.setattr(planning, "_AT_A_TIME", 16)
    texts = [f"{a} {b}" for a in WORDS[:8] for b in WORDS[:8]]
    digests = [text_digest(t) for t in texts]
    config = ExtractConfig(
        backbone=BackboneConfig(source=str(tiny_files("bert").folder)),
        capture=parse_capture("hidden=0@mean"),
    )
    runtime = ExtractRuntime.model_validate(
        {"device": "cpu", "block_texts": 16, "too_long": too_long}
    )
    for kept in (32, 64, 64):
        target = resolve_target(config)
        report = extract(target, tmp_path, texts[:kept], digests[:kept], runtime, SilentProgress())
        assert report.n_truncated == 0
    assert (locate(report.store, digests).segment >= 0).all()
    assert max(together) == 16, together


def test_rows_of_every_batch_lie_in_the_same_memory(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[int] = []
    append = SegmentDraft.append

    def watched(
        draft: SegmentDraft, array: str, rows: NDArray[Any], statistics: Statistics | None = None
    ) -> None:
        if array == "hidden/0":
            places.append(rows.ctypes.data)
        append(draft, array, rows, statistics)

    monkeypatch.setattr(SegmentDraft, "append", watched)
    run(tiny_files("bert"), tmp_path)
    assert len(places) > 6
    assert len(np.unique(places)) <= 3, "one batch is computed, one waits, one is written"


def test_a_small_extraction_gives_no_pages_back(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory, "_trim", lambda: asked.append)
    run(tiny_files("bert"), tmp_path)
    # 12 batches; the rest of the process may have grown meanwhile.
    assert len(asked) <= 1


def test_pages_are_given_back_whenever_the_process_has_grown_by_the_slack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slack, size = memory.SLACK_BYTES, [5 * memory.SLACK_BYTES]
    asked: list[int] = []

    def trim(_: int) -> None:
        asked.append(size[0])
        size[0] -= slack // 2

    monkeypatch.setattr(memory, "_own_bytes", lambda: size[0])
    monkeypatch.setattr(memory, "_trim", lambda: trim)
    own = memory.Heap()
    # What somebody else frees is not room to grow into.
    for now in (5.0, 5.9, 3.0, 3.9, 4.1, 4.5, 4.7):
        size[0] = int(now * slack)
        own.release_if_grown()
    assert asked == [int(4.1 * slack), int(4.7 * slack)]
    monkeypatch.setattr(memory, "_trim", lambda: None)
    size[0] = 9 * slack
    own.release_if_grown()
    assert len(asked) == 2


def test_own_memory_is_what_the_system_calls_anonymous(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Path("/proc/self/statm")
    if not sizes.exists():
        pytest.skip("no /proc")
    n = 32 << 20
    before = memory._own_bytes()  # pyright: ignore[reportPrivateUsage]
    pages = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(32):
        pages.write(b"x" * (1 << 20))
    grown = memory._own_bytes() - before  # pyright: ignore[reportPrivateUsage]
    pages.close()
    assert abs(grown - n) < n // 4
    monkeypatch.setattr(memory, "_SIZES", sizes / "none")
    assert memory._own_bytes() == 0  # pyright: ignore[reportPrivateUsage]
