"""Extraction into the store: right rows, only what is missing, nothing half-written."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from permafrost.stages.extraction import computing
from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
)
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.lengths import measure
from permafrost.stages.extraction.planning import DISK_MARGIN, finished_plan, plan_extraction
from permafrost.stages.extraction.recipes import Encoded, PlainRecipe, Recipe, encode
from permafrost.stages.extraction.recording import Keep
from permafrost.stages.extraction.target import (
    ExtractRuntime,
)
from permafrost.storage.errors import (
    DiskFullError,
    InputError,
    NotFoundError,
    OverflowRangeError,
    PermafrostError,
    StoreBusyError,
)
from permafrost.storage.features.parts import part_of
from permafrost.storage.features.projections import read_projection
from permafrost.storage.features.store import DERIVED, FeatureStore, store_folder
from permafrost.storage.features.transfer import transfer
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.diagonal import diagonal
from tests.stages.extraction.small_extraction import (
    EVERYTHING,
    FLOAT16_NOISE,
    MORE,
    Extraction,
    rows,
)
from tests.stages.extraction.tiny_models import TEXTS


@pytest.mark.few(1)
@diagonal(
    {
        "model_type": ["bert", "llama", "gemma2"],
        "store_dtype": ["float32", "float16", "bfloat16"],
    }
)
def test_stored_rows_equal_one_text_at_a_time(
    extraction: Callable[[str], Extraction], model_type: str, store_dtype: str
) -> None:
    run = extraction(model_type)
    target = run.target(EVERYTHING, store_dtype=store_dtype)
    store = run([*TEXTS, *MORE], target).store
    backbone = run.load()
    tolerance = {"float32": 2e-5, "float16": FLOAT16_NOISE, "bfloat16": 2e-2}[store_dtype]
    for text in (*TEXTS, MORE[2]):
        encoded = encode(target.recipe, target.tokenizer, [text], target.max_length)
        alone = forward(backbone, encoded, target.arrays, target.recipe)
        for array, expected in alone.items():
            np.testing.assert_allclose(
                rows(store, array, text), expected.float().numpy(), rtol=tolerance, atol=tolerance
            )
        np.testing.assert_array_equal(rows(store, "token_ids", text), encoded.token_ids.data)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_codecs_store_the_same_rows(extraction: Callable[[str], Extraction], codec: str) -> None:
    run = extraction("bert")
    store = run(list(TEXTS), run.target("hidden=all", codec=codec)).store
    assert store.record.codec == codec
    assert verify(store, SilentProgress()) == []
    assert rows(store, "hidden/2", TEXTS[1]).shape == (11, 32)


def test_batch_size_and_buffer_change_nothing_beyond_noise(
    extraction: Callable[[str], Extraction],
) -> None:
    run = extraction("gpt2")
    target = run.target("hidden=all", store_dtype="float32")
    texts = [*TEXTS, *MORE]
    one = run(texts, target).store
    kept = {t: rows(one, "hidden/3", t) for t in texts}
    shutil.rmtree(run.home)
    tiny_buffer = ExtractRuntime(device="cpu", batch_tokens=4096, buffer_bytes=1, block_texts=3)
    other = run(texts, target, tiny_buffer).store
    for text in texts:
        np.testing.assert_allclose(rows(other, "hidden/3", text), kept[text], rtol=2e-5, atol=2e-5)


def test_what_another_home_computed_is_not_computed_again(
    extraction: Callable[[str], Extraction], tmp_path: Path
) -> None:
    run, other = extraction("bert"), extraction("bert")
    other.home = tmp_path / "other"
    some = list(TEXTS[:3])
    run(some, run.target("hidden=1"))
    # Other segments, of more texts, and another array.
    store = other([*MORE, *some], wanted := other.target("hidden=2")).store
    transfer(part_of(store, ("*",), None), run.home, SilentProgress())
    again = run(some, wanted)
    assert (again.n_tokens, again.n_cells, run.loads) == (0, 0, 1)
    for text in some:
        np.testing.assert_array_equal(
            rows(again.store, "hidden/2", text), rows(store, "hidden/2", text)
        )
    digests = [text_digest(text) for text in some]
    plan = plan_extraction(wanted, run.home, some, digests)
    assert (plan.cells, plan.n_new_texts) == ({}, 0)
    assert finished_plan(wanted, run.home, [digests]) is not None


def test_second_extraction_loads_no_backbone(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    target = run.target(EVERYTHING)
    assert run(list(TEXTS), target).n_tokens > 0
    assert run.loads == 1
    again = run(list(TEXTS), target)
    assert (again.n_tokens, again.n_cells, run.loads) == (0, 0, 1)


def test_more_layers_fill_only_the_new_cells(
    extraction: Callable[[str], Extraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = extraction("bert")
    store = run(list(TEXTS), run.target("hidden=1")).store
    shard = store.shard_path(0, "hidden/1")
    written = shard.stat().st_mtime_ns
    asked: list[tuple[str, ...]] = []

    def counting(
        backbone: Backbone, encoded: Encoded, arrays: list[str], recipe: Recipe, keep: Keep
    ):
        asked.append(tuple(arrays))
        return forward(backbone, encoded, arrays, recipe, keep)

    monkeypatch.setattr(computing, "forward", counting)
    report = run(list(TEXTS), run.target("hidden=1-2,values=3"))
    assert set(asked) == {("hidden/2", "values/3")}
    assert report.n_cells == 2
    assert shard.stat().st_mtime_ns == written


def test_more_texts_compute_only_the_new_texts(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    target = run.target("hidden=1")
    segments = run(list(TEXTS), target).store.segments()
    second = run([*TEXTS, *MORE], target)
    encoded = encode(PlainRecipe(readout="first"), target.tokenizer, MORE, target.max_length)
    assert second.n_tokens == len(encoded.token_ids.data)
    assert second.store.segments()[: len(segments)] == segments
    assert second.n_segments == len(second.store.segments()) - len(segments)


def test_a_text_shared_by_two_corpora_is_stored_once(
    extraction: Callable[[str], Extraction],
) -> None:
    run = extraction("bert")
    target = run.target("hidden=1")
    run(list(TEXTS), target)
    store = run([TEXTS[2], "snow melts slowly"], target).store
    digests = [
        d for s in store.segments() for d in store.segment(s).table.column("digest").to_pylist()
    ]
    assert len(digests) == len(set(digests)) == len(TEXTS) + 1


def test_identity_separates_stores(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    ids = {
        run(list(TEXTS), run.target("hidden=1", **fields)).store.store_id
        for fields in (
            {},
            {"store_dtype": "float32"},
            {"recipe": {"kind": "plain", "specials": "exclude"}},
            {"recipe": {"kind": "plain", "readout": "last"}},
            {"recipe": {"kind": "template", "template": "snow is {text}"}},
        )
    }
    assert len(ids) == 5


def test_readers_run_over_the_span(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    store = run(
        list(TEXTS), run.target("hidden=1", recipe={"kind": "plain", "specials": "exclude"})
    ).store
    digests = [text_digest(t) for t in TEXTS]
    spanned = open_reader(store, "hidden/1", digests, budget_bytes=1 << 20)
    windowed = open_reader(store, "hidden/1", digests, budget_bytes=1)
    whole = open_reader(store, "hidden/1", digests, budget_bytes=1 << 20, tokens="all")
    assert (spanned.lengths == whole.lengths - 2).all()
    for (_, a), (_, b), (_, c) in zip(
        spanned.in_order(1), windowed.in_order(1), whole.in_order(1), strict=True
    ):
        np.testing.assert_array_equal(a.data, c.data[1:-1])
        np.testing.assert_array_equal(a.data, b.data)


def test_output_projection_is_kept_with_attention_rows(
    extraction: Callable[[str], Extraction],
) -> None:
    run = extraction("llama")
    store = run(list(TEXTS), run.target("attention_rows=2,values=2")).store
    weight, _ = read_projection(store, 2)
    attention = run.load().model.layers[1].self_attn.o_proj
    np.testing.assert_array_equal(weight, attention.weight.T.numpy())
    with pytest.raises(NotFoundError, match="capture attention_rows=1"):
        read_projection(store, 1)


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (1e6, OverflowRangeError, r"hidden/1 holds the activation 1e\+06.*float16.*--store-dtype"),
        (-1e6, OverflowRangeError, r"-1e\+06"),
        (float("nan"), PermafrostError, r"hidden/1 \(computed in float32\); nothing"),
        (float("inf"), PermafrostError, "non-finite"),
    ],
)
def test_unstorable_activation_is_an_error_and_commits_nothing(
    extraction: Callable[[str], Extraction],
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    error: type[Exception],
    says: str,
) -> None:
    def wild(backbone: Backbone, encoded: Encoded, arrays: list[str], recipe: Recipe, keep: Keep):
        def keep_wild(name: str, rows: torch.Tensor) -> torch.Tensor:
            rows[0, 3] = value
            return keep(name, rows)

        return forward(backbone, encoded, arrays, recipe, keep_wild)

    run = extraction("bert")
    target = run.target("hidden=1")
    with monkeypatch.context() as patch:
        patch.setattr(computing, "forward", wild)
        with pytest.raises(error, match=says):
            run(list(TEXTS), target)
    store = FeatureStore.open(store_folder(run.home, target.identity.store_id))
    assert store.committed(0).difference(DERIVED) == frozenset()
    assert not list(store.root.rglob(".draft-*"))
    assert run(list(TEXTS), target).n_cells == 3


def test_extraction_that_cannot_fit_is_refused_before_it_starts(
    extraction: Callable[[str], Extraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = extraction("bert")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=DISK_MARGIN))
    with pytest.raises(DiskFullError, match=r"has 67,108,864 free; nothing was started") as refused:
        run(list(TEXTS), run.target("hidden=all"))
    # There is room for what it writes, but not for what is left free beside it.
    figures = r"about ([\d,]+) bytes .* and ([\d,]+) are left free: it needs ([\d,]+),"
    told = re.search(figures, str(refused.value))
    assert told is not None
    written, left, needed = (int(figure.replace(",", "")) for figure in told.groups())
    assert (left, needed) == (DISK_MARGIN, written + DISK_MARGIN)
    assert run.loads == 0
    assert not (run.home / "features").exists()


def test_disk_that_fills_up_keeps_what_is_committed(
    extraction: Callable[[str], Extraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = extraction("bert")
    target = run.target("hidden=1")
    run(list(TEXTS), target)
    room = [2]

    def full(fd: int, offset: int, length: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFullError, match="half-written"):
            run([*TEXTS, *MORE], target)
    store = FeatureStore.open(store_folder(run.home, target.identity.store_id))
    assert verify(store, SilentProgress()) == []
    assert not list(store.root.rglob(".draft-*"))
    assert run([*TEXTS, *MORE], target).n_cells > 0
    assert verify(store, SilentProgress()) == []


def test_second_writer_is_refused_and_changes_nothing(
    extraction: Callable[[str], Extraction],
) -> None:
    run = extraction("bert")
    target = run.target("hidden=1")
    store = run(list(TEXTS), target).store
    with (
        writing(store),
        pytest.raises(StoreBusyError, match=f"written by process {os.getpid()} on "),
    ):
        run([*TEXTS, *MORE], target)
    assert store.segments() == FeatureStore.open(store.root).segments()
    # Nothing to compute needs no lease: readers and finished runs go on beside a writer.
    with writing(store):
        assert run(list(TEXTS), target).n_tokens == 0


class Waiting(SilentProgress):
    """Is told what is waited for, and then ends that."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.said, self._end = list[str](), end

    def advance(self, amount: int | float, note: str = "") -> None:
        if note.startswith("waiting"):
            self.said.append(note)
            self._end()


def test_a_second_writer_may_wait_and_then_computes_only_what_is_left(
    extraction: Callable[[str], Extraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = extraction("bert")
    target = run.target("hidden=1")
    store = run(list(TEXTS), target).store
    monkeypatch.setattr("permafrost.storage.features.turns.LOOK_S", 0.0)
    first = ExitStack()

    def end_of_first() -> None:
        first.close()
        run([*TEXTS, MORE[0]], target)

    first.enter_context(writing(store))
    progress = Waiting(end_of_first)
    texts = [*TEXTS, *MORE]
    left = measure(target, MORE[1:]).lengths.sum()
    report = extract(
        target,
        run.home,
        texts,
        [text_digest(t) for t in texts],
        ExtractRuntime(device="cpu", busy="wait"),
        progress,
    )
    (said,) = progress.said
    assert f"waiting for process {os.getpid()} on " in said
    assert report.n_tokens == left


def test_truncated_texts_are_counted(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    backbone = BackboneConfig(source=str(run.files.folder), max_length=6)
    report = run(list(TEXTS), run.target("hidden=1", backbone=backbone))
    assert report.n_truncated == 2
    assert rows(report.store, "hidden/1", TEXTS[2]).shape[0] == 6


def test_a_recipe_may_have_a_length_of_its_own(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    folder = str(run.files.folder)
    short = BackboneConfig(source=folder, max_length=6)
    theirs = run.target("hidden=1", backbone=short)
    for length in (None, 5, 30):
        backbone = BackboneConfig(source=folder, max_length=length)
        own = run.target("hidden=1", backbone=backbone, recipe={"kind": "plain", "max_length": 6})
        assert own.identity.store_id == theirs.identity.store_id
        assert (own.max_length, own.recipe) == (theirs.max_length, theirs.recipe)
    too_long = {"kind": "plain", "max_length": 100_000}
    with pytest.raises(InputError, match="max_length is 100000, but the backbone"):
        run.target("hidden=1", backbone=short, recipe=too_long)


def test_digests_alone_tell_that_nothing_is_missing(
    extraction: Callable[[str], Extraction],
) -> None:
    run = extraction("bert")
    target, digests = run.target("hidden=1"), [text_digest(t) for t in TEXTS]
    assert finished_plan(target, run.home, [digests]) is None, "there is no store"
    run(list(TEXTS), target)
    plan = finished_plan(target, run.home, [digests[:2], digests[2:]])
    assert plan == plan_extraction(target, run.home, list(TEXTS), digests)
    more = [text_digest(MORE[0])]
    assert finished_plan(target, run.home, [digests, more]) is None, "a text is new"
    wider = run.target("hidden=1-2")
    assert finished_plan(wider, run.home, [digests]) is None, "an array is new"


def test_plan_predicts_tokens_and_bytes(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    target = run.target(EVERYTHING)
    texts = [*TEXTS, *MORE]
    digests = [text_digest(t) for t in texts]
    plan = plan_extraction(target, run.home, texts, digests)
    assert plan.exact
    assert not run.home.exists()
    report = run(texts, target)
    assert plan.n_tokens == report.n_tokens
    assert plan_extraction(target, run.home, texts, digests).nothing_to_do
    wider = plan_extraction(
        run.target("hidden=all,values=all"),
        run.home,
        [*texts, "snow"],
        [*digests, text_digest("snow")],
    )
    assert (wider.n_new_texts, wider.cells) == (1, {})
