"""Bytes that a plan says, and bytes that its extraction writes."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from permafrost.stages.extraction import planning
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.planning import plan_extraction
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.receipts import receipt_path
from permafrost.storage.features.store import DERIVED, FeatureStore, store_folder
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.small_extraction import AXES, EVERYTHING, MORE, Extraction
from tests.stages.extraction.tiny_models import TEXTS


@pytest.mark.parametrize(
    "capture", ["hidden=1", "hidden=2@mean", pytest.param(EVERYTHING, marks=pytest.mark.deep)]
)
def test_planned_bytes_are_those_that_are_written(
    extraction: Callable[[str], Extraction], capture: str
) -> None:
    """New segments of two blocks, more texts, more arrays, and segments that lack what is derived."""
    run = extraction("bert")
    axes = Axes(segment_tokens=64, segment_texts=16, chunk_bytes=128)
    runtime = ExtractRuntime(device="cpu", batch_tokens=64, block_texts=len(MORE) - 2)
    first, more = run.target(capture), run.target(f"{capture},hidden=3@mean,values=1")

    def written(target: ExtractTarget, texts: list[str]) -> dict[str, int]:
        digests = [text_digest(t) for t in texts]
        where = (target, run.home, texts, digests)
        before = _shard_sizes(run.home)
        plan = plan_extraction(*where, axes=axes, block_texts=runtime.block_texts)
        report = extract(*where, runtime, SilentProgress(), axes=axes, load=run.load)
        grown = _shard_sizes(run.home) - before
        assert plan.exact
        assert plan.bytes_per_array == dict(grown)
        assert plan.n_bytes == grown.total()
        assert DERIVED[0] in grown or not plan.n_new_texts
        return {a: len(list(report.store.zarr_path.glob(f"{a}/c/*"))) for a in grown}

    assert min(written(first, MORE).values()) > 2
    written(first, [*MORE, *TEXTS])
    written(more, MORE)
    store = FeatureStore.open(store_folder(run.home, first.identity.store_id))
    receipt_path(store.root, 0, DERIVED[0]).unlink()
    store.shard_path(0, DERIVED[0]).unlink()
    assert DERIVED[0] in written(more, ["snow"])


def test_bytes_of_many_texts_are_planned_from_a_sample(
    extraction: Callable[[str], Extraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SAMPLE_TEXTS", 100)
    run = extraction("bert")
    texts = [f"{text} {i}" for i in range(40) for text in TEXTS]
    digests, target = [text_digest(t) for t in texts], run.target("hidden=1,hidden=2@mean")
    plan = plan_extraction(target, run.home, texts, digests, axes=AXES, block_texts=100)
    assert not plan.exact
    run(texts, target)
    assert plan.n_bytes == pytest.approx(_shard_sizes(run.home).total(), rel=0.1)


def _shard_sizes(home: Path) -> Counter[str]:
    """Bytes of shards by array, without output projections."""
    found = Counter[str]()
    for path in home.glob("features/*/features.zarr/**/c/**/*"):
        if path.is_file():
            array, _, _ = path.as_posix().partition("features.zarr/")[2].partition("/c/")
            if not array.startswith("projections/"):
                found[array] += path.stat().st_size
    return found
