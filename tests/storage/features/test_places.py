"""Looking texts up by digest: what is found, and that it is sorted once."""

import shutil
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray

from permafrost.storage.features import places as module
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.places import PLACE, Locations, Places
from permafrost.storage.features.segments import SCHEMA, build_table
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from permafrost.storage.texts import Texts
from tests.storage.small_store import IDENTITY, SIZES, SmallStore

RNG = np.random.default_rng(3)
NUMBERS = (0, 1, 4, 5, 9)


def hexed(rows: NDArray[np.uint8]) -> list[str]:
    return [row.tobytes().hex() for row in rows]


def digests_with_twins(n: int) -> list[str]:
    """Random digests, of which many share their first eight bytes."""
    rows = RNG.integers(0, 256, (n, 32), dtype=np.uint8)
    rows[:, :8] = rows[RNG.integers(0, max(n // 8, 1), n), :8]
    return hexed(rows)


def table(digests: Sequence[str], number: int) -> pa.Table:
    n = len(digests)
    lengths = RNG.integers(1, 30, n)
    columns = [
        pa.array(digests, pa.string()),
        pa.array(lengths, pa.int32()),
        pa.array(np.cumsum(lengths) + 1000 * number, pa.int64()),
        pa.array(np.arange(n) + 100 * number, pa.int64()),
        pa.array(RNG.random(n) < 0.5, pa.bool_()),
    ]
    schema = pa.schema([SCHEMA.field(name) for name in PLACE])
    return pa.Table.from_arrays(columns, schema=schema)


def by_one_hash_table(tables: dict[int, pa.Table], digests: Sequence[str]) -> Locations:
    """The former way, written out: the first row of all tables one after the other."""
    known = pa.concat_tables(tables.values())
    owner = np.repeat(list(tables), [t.num_rows for t in tables.values()])
    found = pc.index_in(pa.array(list(digests), pa.string()), value_set=known.column("digest"))
    rows = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    hit = rows >= 0
    start, length, row = (
        np.where(hit, known.column(n).to_numpy()[rows], 0).astype(np.int64)
        for n in ("token_start", "n_tokens", "text_row")
    )
    cut = hit & known.column("truncated").to_numpy()[rows]
    return Locations(np.where(hit, owner[rows], -1), start, length, row, cut)


@pytest.mark.parametrize(
    ("merged_texts", "at_a_time"), [(1, 1 << 15), (90, 1 << 15), (1 << 18, 100)]
)
def test_the_first_of_equal_digests_is_found_and_nothing_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, merged_texts: int, at_a_time: int
) -> None:
    monkeypatch.setattr(module, "MERGED_TEXTS", merged_texts)
    monkeypatch.setattr(module, "_AT_A_TIME", at_a_time)
    pool = digests_with_twins(120)
    tables = {n: table(RNG.choice(pool, 20 + 9 * n).tolist(), n) for n in NUMBERS}
    found = Places()
    for number, some in tables.items():
        found = found.adding(number, some)
    assert found.segments == NUMBERS
    wanted = [*pool, *digests_with_twins(50), *RNG.choice(pool, 40)]
    # One half of a known digest, with another half.
    wanted += [d[:16] + "0" * 48 for d in pool] + ["0" * 16 + d[16:] for d in pool]
    wanted += ["", "x", pool[0][:-1], pool[0] + "0", pool[0].upper(), "g" * 64, "é" * 32, " " * 64]
    expected = by_one_hash_table(tables, wanted)
    assert (expected.segment >= 0).sum() > 100
    assert (expected.segment < 0).sum() > 100
    sliced = Texts(pa.array(["y", "", *wanted, "z"]))[2:-1]
    for asked in (wanted, sliced):
        got = found.find(asked)
        for name, values in vars(expected).items():
            np.testing.assert_array_equal(getattr(got, name), values, err_msg=name)
    some = [1, 4, 9]
    expected = by_one_hash_table({n: tables[n] for n in some}, wanted)
    got = found.find(wanted, some)
    for name, values in vars(expected).items():
        np.testing.assert_array_equal(getattr(got, name), values, err_msg=name)
    assert (found.find(wanted, []).segment == -1).all()
    for asked in (wanted, wanted[:3], []):
        holding = [n for n in NUMBERS if set(asked) & set(tables[n].column("digest").to_pylist())]
        assert found.segments_of(asked) == holding


def test_rows_without_a_usable_digest_are_passed_over() -> None:
    good = hexed(RNG.integers(0, 256, (2, 32), dtype=np.uint8))
    rows = table([good[0], "short", good[1]], 3)
    where = Places().adding(3, rows).find([good[1], "short"])
    assert where.segment.tolist() == [3, -1]
    assert where.text_row.tolist() == [302, 0]


def test_looking_up_a_block_needs_no_memory_for_the_texts_that_are_known() -> None:
    n = 20_000
    digests = hexed(RNG.integers(0, 256, (n, 32), dtype=np.uint8))
    known = Places()
    for number in range(4):
        known = known.adding(number, table(digests[number::4], number))
    tracemalloc.start()
    try:
        assert known.find(digests[:100]).segment.tolist() == [i % 4 for i in range(100)]
        assert tracemalloc.get_traced_memory()[1] < 5 * n
    finally:
        tracemalloc.stop()


def test_a_text_takes_57_bytes() -> None:
    n = 1000
    known = Places().adding(0, table(hexed(RNG.integers(0, 256, (n, 32), dtype=np.uint8)), 0))
    (run,) = known.runs
    assert sum(column.nbytes for column in vars(run).values()) == 57 * n


def test_a_store_looks_texts_up_without_going_through_all_that_it_knows(tmp_path: Path) -> None:
    n = 4096
    axes = Axes(segment_tokens=n, segment_texts=n)
    store = FeatureStore.create_or_open(tmp_path, IDENTITY, SIZES, {}, axes=axes)
    ones, none = np.ones(n, np.int64), np.zeros(n, np.int64)
    texts = [str(i) for i in range(n)]
    with writing(store) as writer:
        writer.add_segment(build_table(0, axes, texts, ones, none, ones, none.astype(bool)), 0)
    store.locate([text_digest(texts[0])])
    default = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(default)
    pa.set_memory_pool(counted)
    try:
        where = store.locate([text_digest(t) for t in texts[:10]])
    finally:
        pa.set_memory_pool(default)
    assert where.text_row.tolist() == list(range(10))
    assert counted.max_memory() < 2 * n, "no hash table of all digests"


def test_a_segment_that_was_dropped_is_not_found_any_more(small: SmallStore) -> None:
    before = small.store.locate(small.digests)
    assert {0, 1} <= set(before.segment.tolist())
    content = (small.store.root / "segments" / "000000.parquet").read_bytes()
    (small.store.root / "segments" / "000000.parquet").unlink()
    shutil.rmtree(small.store.root / "receipts" / "000000")
    after = small.store.locate(small.digests).segment
    np.testing.assert_array_equal(after, np.where(before.segment == 0, -1, before.segment))
    (small.store.root / "segments" / "000000.parquet").write_bytes(content)
    for name, values in vars(small.store.locate(small.digests)).items():
        np.testing.assert_array_equal(values, getattr(before, name), err_msg=name)
