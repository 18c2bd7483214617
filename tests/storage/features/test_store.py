import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from permafrost.storage.errors import (
    CorruptDataError,
    IdentityMismatchError,
    InputError,
    NotFoundError,
)
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.segments import build_table
from permafrost.storage.features.store import FeatureStore, all_stores, store_folder
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from tests.storage.small_store import AXES, IDENTITY, SIZES, SmallStore, new_store, snapshot


def test_a_store_is_created_once_and_opened_afterwards(tmp_path: Path) -> None:
    first = new_store(tmp_path).store
    before = snapshot(tmp_path)
    again = new_store(tmp_path, axes=Axes(segment_tokens=128, segment_texts=16)).store
    assert again.record == first.record
    assert again.record.axes == AXES
    assert snapshot(tmp_path) == before
    assert first.root == store_folder(tmp_path, IDENTITY.store_id)


def test_store_json_says_what_another_tool_needs(tmp_path: Path) -> None:
    content = json.loads((new_store(tmp_path).store.root / "store.json").read_text())
    assert content["format_version"] == 1
    assert content["store_id"] == IDENTITY.store_id
    assert content["identity"]["recipe"] == IDENTITY.recipe
    assert content["axes"] == {"segment_tokens": 64, "segment_texts": 8, "chunk_bytes": 128}
    assert content["sizes"] == SIZES.model_dump()


def test_opening_with_another_identity_names_every_field_and_both_values(small: SmallStore) -> None:
    wanted = IDENTITY.model_copy(update={"weights_digest": "other", "compute_dtype": "float16"})
    with pytest.raises(IdentityMismatchError) as caught:
        FeatureStore.open(small.store.root, expect=wanted)
    message = str(caught.value)
    assert "weights_digest: store has 'weights', requested is 'other'" in message
    assert "compute_dtype: store has 'float32', requested is 'float16'" in message
    assert "max_length" not in message


def test_a_foreign_store_in_the_folder_is_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path).store
    wanted = IDENTITY.model_copy(update={"max_length": 16})
    store.root.rename(store_folder(tmp_path, wanted.store_id))
    with pytest.raises(IdentityMismatchError, match="max_length: store has 32, requested is 16"):
        new_store(tmp_path, identity=wanted)


def test_an_identity_changed_by_hand_no_longer_fits_the_id(tmp_path: Path) -> None:
    path = new_store(tmp_path).store.root / "store.json"
    content = json.loads(path.read_text())
    content["identity"]["max_length"] = 33
    del content["checksum"]
    path.write_text(json.dumps(content))
    (path.parent / "copies" / "store.json").unlink()
    with pytest.raises(CorruptDataError, match="changed by hand"):
        FeatureStore.open(path.parent)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format_version": 1}', '{"format_version": 2}', "[" * 100_000]
)
def test_a_damaged_record_is_corrupt(tmp_path: Path, content: str) -> None:
    path = new_store(tmp_path).store.root / "store.json"
    path.write_text(content)
    with pytest.raises(CorruptDataError, match=r"store\.json"):
        FeatureStore.open(path.parent)


@pytest.mark.parametrize("version", ["2", '"1"'])
def test_another_format_is_refused_with_both_versions(tmp_path: Path, version: str) -> None:
    path = new_store(tmp_path).store.root / "store.json"
    path.write_text(f'{{"format": "permafrost-features", "format_version": {version}}}')
    with pytest.raises(InputError, match=r"store format .* this program reads 1"):
        FeatureStore.open(path.parent)


def test_a_folder_without_store_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no feature store"):
        FeatureStore.open(tmp_path)
    assert all_stores(tmp_path) == []


def test_all_stores_are_listed_by_id(tmp_path: Path) -> None:
    ids = [
        new_store(tmp_path, identity=IDENTITY.model_copy(update={"max_length": n})).store.store_id
        for n in (8, 16, 32)
    ]
    assert [s.store_id for s in all_stores(tmp_path)] == sorted(ids)


def test_texts_are_found_by_content_and_unknown_ones_are_said_to_be(small: SmallStore) -> None:
    wanted = [*reversed(small.texts), "never seen", small.texts[0]]
    where = small.store.locate([text_digest(t) for t in wanted])
    assert where.segment[-2] == -1
    for i, text in enumerate(wanted):
        if text == "never seen":
            continue
        table = small.store.segment(int(where.segment[i])).table.to_pylist()
        (row,) = (r for r in table if r["text"] == text)
        found = (where.token_start[i], where.n_tokens[i], where.text_row[i])
        assert found == (row["token_start"], row["n_tokens"], row["text_row"])


def test_an_empty_store_knows_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path).store
    assert store.segments() == store.arrays() == []
    assert store.n_slots() == 0
    assert store.locate([text_digest("a")]).segment.tolist() == [-1]
    assert store.locate([]).segment.tolist() == []


def test_missing_cells_are_exactly_those_without_a_receipt(small: SmallStore) -> None:
    segments = small.store.segments()
    assert small.store.missing_cells(segments, ["hidden/1"]) == {}
    wanted = ["hidden/1", "hidden/2", "values/1"]
    assert small.store.missing_cells(segments, wanted) == dict.fromkeys(
        segments, ("hidden/2", "values/1")
    )


@pytest.mark.parametrize("array", ["hidden", "hidden/1/2", "pooled/other/1", "../x", "", "spans"])
def test_a_name_that_is_no_array_is_refused_with_the_names_there_are(
    small: SmallStore, array: str
) -> None:
    with pytest.raises(NotFoundError, match="not an array of a feature store; there are token_ids"):
        small.store.spec(array)


def test_widths_follow_the_kind_of_array(small: SmallStore) -> None:
    expected = {
        "hidden/final": ("token", 8),
        "values/2": ("token", 4),
        "attention_rows/2": ("token", 2),
        "pooled/hidden_last/2": ("text", 8),
        "pooled/values_readout/2": ("text", 4),
        "token_ids": ("token", None),
    }
    specs = {name: small.store.spec(name) for name in expected}
    assert {n: (s.axis, s.width) for n, s in specs.items()} == expected


def test_a_text_shared_by_two_extractions_is_stored_once(small: SmallStore) -> None:
    before = small.store.segments()
    small.add(["new text"], [5])
    assert small.store.segments() == [*before, len(before)]
    digests = [text_digest(t) for t in small.texts]
    assert len(np.unique(digests)) == sum(
        small.store.segment(s).n_texts for s in small.store.segments()
    )


def test_a_shard_is_mapped_once(small: SmallStore) -> None:
    assert small.store.open_shard(0, "hidden/1") is small.store.open_shard(0, "hidden/1")
    mapped = small.store.open_shard(0, "hidden/1")
    small.store.forget()
    assert small.store.open_shard(0, "hidden/1") is not mapped


def test_finding_texts_keeps_none_of_them_in_memory(tmp_path: Path) -> None:
    store = FeatureStore.create_or_open(
        tmp_path, IDENTITY, SIZES, {}, axes=Axes(segment_tokens=64, segment_texts=64)
    )
    texts = [f"{i:04000d}" for i in range(8 * 64)]
    ones, none = np.ones(64, np.int64), np.zeros(64, np.int64)
    with writing(store) as writer:
        for number in range(8):
            part = texts[64 * number : 64 * (number + 1)]
            table = build_table(
                number, store.record.axes, part, ones, none, ones, none.astype(bool)
            )
            writer.add_segment(table, number)
    store = FeatureStore.open(store.root)
    before = pa.total_allocated_bytes()
    where = store.locate([text_digest(t) for t in texts])
    grown = pa.total_allocated_bytes() - before
    assert where.segment.tolist() == [i // 64 for i in range(len(texts))]
    assert grown < 100 * len(texts), "as many bytes as the digests and places take, not the texts"
    for number in range(8):
        store.segment(number)
    grown = pa.total_allocated_bytes() - before
    assert grown < 4 * 64 * 4000, "two segments of texts stay, not eight"
