"""What every home has to do, be it a folder or on an object store: one class of tests for all of them.

A subclass says where the home is, and how to reach its bytes behind the program's back.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.durable import remove_any
from permafrost.storage.errors import CorruptDataError, NotFoundError, RemovedError, StoreBusyError
from permafrost.storage.features.dropping import arrays_to_drop, drop_arrays, remove_store
from permafrost.storage.features.parts import part_of
from permafrost.storage.features.projections import (
    read_projection,
    stored_projections,
    write_projection,
)
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.transfer import transfer
from permafrost.storage.features.verification import discard, verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.storage.small_store import (
    ARRAYS,
    IDENTITY,
    SIZES,
    SmallStore,
    draft_of,
    filled_store,
    new_store,
)

N_TEXTS = 5


class Place(ABC):
    """Where a home is."""

    @abstractmethod
    def seen_from(self, machine: str) -> Path:
        """The home as one machine sees it, brought up to date."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """The bytes of a file of the home."""

    @abstractmethod
    def write(self, key: str, content: bytes) -> None:
        """Replace them, as damage would."""


def key_of(store: FeatureStore, path: Path) -> str:
    return path.relative_to(store.root.parents[1]).as_posix()


def assert_reads(store: FeatureStore, small: SmallStore) -> None:
    for array in ARRAYS:
        reader = open_reader(
            store, array, small.digests, budget_bytes=1 << 20, precision="stored", tokens="all"
        )
        found = [rows[i] for texts, rows in reader.in_order(3) for i in range(len(texts))]
        assert len(found) == len(small.texts)
        for text, rows in zip(small.texts, found, strict=True):
            assert np.array_equal(rows, small.expected(array, text))


def spec(value: int) -> ArtifactSpec:
    return ArtifactSpec(stage="fit", config={"value": value})


def publish(home: Path, value: int, content: str) -> None:
    with ArtifactStore(home).publishing(spec(value), {}) as draft:
        (draft.folder / "deep").mkdir()
        (draft.folder / "deep" / "result.txt").write_text(content)


class HomeContract(ABC):
    """Subclass it with a fixture `place`."""

    @abstractmethod
    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """An empty home."""

    def test_what_one_machine_writes_another_reads(self, place: Place) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS)
        (store,) = all_stores(place.seen_from("b"))
        assert_reads(store, small)
        assert verify(store, SilentProgress()) == []

    def test_more_texts_and_arrays_are_seen(self, place: Place) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS, arrays=("hidden/1",))
        with writing(small.store) as writer:
            writer.declare(ARRAYS)
            for number in small.store.segments():
                small.fill(writer, number, ARRAYS[1:], np.random.default_rng(1))
        small.add(["one more"], [9])
        (store,) = all_stores(place.seen_from("b"))
        assert_reads(store, small)
        assert verify(store, SilentProgress()) == []

    def test_what_one_machine_began_another_ends(self, place: Place) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS, arrays=("hidden/1",))
        with writing(small.store) as writer, contextlib.suppress(ZeroDivisionError):
            writer.declare(ARRAYS)
            small.fill(writer, 0, ARRAYS[1:], np.random.default_rng(1))
            raise ZeroDivisionError
        (store,) = all_stores(place.seen_from("b"))
        missing = store.missing_cells(store.segments(), ARRAYS)
        assert missing == {s: ARRAYS[1:] for s in store.segments() if s}
        there = SmallStore(store, small.texts, small.rows)
        with writing(store) as writer:
            for number, arrays in missing.items():
                there.fill(writer, number, arrays, np.random.default_rng(2))
        (store,) = all_stores(place.seen_from("c"))
        assert store.missing_cells(store.segments(), ARRAYS) == {}
        assert_reads(store, there)
        assert verify(store, SilentProgress()) == []

    def test_a_second_writer_is_refused_and_may_write_afterwards(self, place: Place) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS)
        (other,) = all_stores(place.seen_from("b"))
        with (
            writing(small.store),
            pytest.raises(StoreBusyError, match="being written by"),
            writing(other),
        ):
            pass
        with writing(other):
            pass

    def test_a_draft_that_is_dropped_leaves_nothing(self, place: Place) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS, arrays=("hidden/1",))
        with writing(small.store) as writer, contextlib.suppress(ZeroDivisionError):
            writer.declare(["hidden/2"])
            with draft_of(writer, 0, ["hidden/2"], {}):
                raise ZeroDivisionError
        (store,) = all_stores(place.seen_from("b"))
        assert "hidden/2" not in store.committed(0)
        with pytest.raises(NotFoundError, match="extract it first"):
            store.open_shard(0, "hidden/2")
        assert verify(store, SilentProgress()) == []

    def test_a_changed_byte_of_a_shard_is_found_and_repaired(self, place: Place) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS)
        store = small.store
        key = key_of(store, store.shard_path(0, "hidden/1"))
        content = place.read(key)
        place.write(key, content[:40] + bytes([content[40] ^ 1]) + content[41:])
        (damage,) = verify(store, SilentProgress())
        assert (damage.segment, damage.array) == (0, "hidden/1")
        (other,) = all_stores(place.seen_from("b"))
        with pytest.raises(CorruptDataError, match="checksum"):
            assert_reads(other, small)
        with writing(store) as writer:
            assert discard(writer, [damage]) == {0: ("hidden/1",)}
            small.fill(writer, 0, ["hidden/1"], np.random.default_rng(0))
        (other,) = all_stores(place.seen_from("c"))
        assert verify(other, SilentProgress()) == []
        assert_reads(other, small)

    @pytest.mark.parametrize("name", ["store.json", "receipts/000000/hidden/1.json"])
    def test_a_changed_digit_of_a_record_is_found(self, place: Place, name: str) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS)
        key = key_of(small.store, small.store.root / name)
        place.write(key, place.read(key).replace(b"1", b"2", 1))
        home = place.seen_from("b")
        with pytest.raises(CorruptDataError):
            assert_reads(all_stores(home)[0], small)

    def test_projections_come_back(self, place: Place) -> None:
        store = new_store(place.seen_from("a")).store
        weight = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
        write_projection(store, 1, weight, None)
        (other,) = all_stores(place.seen_from("b"))
        found, bias = read_projection(other, 1)
        assert np.array_equal(found, weight)
        assert bias is None

    def test_a_store_is_created_once(self, place: Place) -> None:
        homes = [place.seen_from(n) for n in ("a", "b")]
        first, second = (
            FeatureStore.create_or_open(h, IDENTITY, SIZES, {"source": "somewhere"}) for h in homes
        )
        assert first.record == second.record

    def test_dropped_arrays_are_not_extracted_free_their_bytes_and_come_back(
        self, place: Place
    ) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS)
        write_projection(small.store, 1, np.ones((4, 8), np.float32), None)
        (other,) = all_stores(place.seen_from("b"))
        assert_reads(other, small)  # fetched
        (rows, hidden) = arrays_to_drop(small.store, ["hidden/*", "attention_rows/1"])
        assert hidden.n_segments == len(small.store.segments())
        shards = [small.store.shard_path(s, "hidden/1") for s in small.store.segments()]
        n_stored = sum(len(place.read(key_of(small.store, path))) for path in shards)
        assert hidden.bytes >= n_stored
        with writing(small.store) as writer:
            drop_arrays(writer, [rows.array, hidden.array])
        for path in shards:
            with pytest.raises((KeyError, FileNotFoundError)):
                place.read(key_of(small.store, path))
        for machine in ("b", "c"):
            (store,) = all_stores(place.seen_from(machine))
            assert store.arrays() == ["pooled/hidden_mean/1", "span", "token_ids"]
            assert verify(store, SilentProgress()) == []
            assert stored_projections(store) == []
            with pytest.raises(NotFoundError, match="extract it first"):
                store.open_shard(0, "hidden/1")
        (gone,) = arrays_to_drop(store, ["hidden/1"])
        assert not gone.is_there
        with pytest.raises(
            NotFoundError, match=r"no array .* is called 'hidden/9'; there are pooled"
        ):
            arrays_to_drop(store, ["hidden/9"])
        with writing(store) as writer:
            writer.declare(ARRAYS)
            again = SmallStore(store, small.texts, small.rows)
            for number in store.segments():
                again.fill(
                    writer, number, ["hidden/1", "attention_rows/1"], np.random.default_rng(1)
                )
        (store,) = all_stores(place.seen_from("d"))
        assert_reads(store, small)
        assert verify(store, SilentProgress()) == []

    def test_a_removed_store_is_gone(self, place: Place) -> None:
        small = filled_store(place.seen_from("a"), N_TEXTS)
        with writing(small.store) as writer:
            remove_any(remove_store(writer))
        with pytest.raises(RemovedError, match="was removed since it was opened"):
            assert_reads(small.store, small)
        with pytest.raises(RemovedError), writing(small.store):
            pass
        assert all_stores(place.seen_from("b")) == []

    def test_artifacts_are_published_checked_and_removed(self, place: Place) -> None:
        publish(place.seen_from("a"), 1, "hello")
        publish(place.seen_from("b"), 1, "later, and not kept")
        there = ArtifactStore(place.seen_from("c"))
        assert (there.open(spec(1).ref) / "deep" / "result.txt").read_text() == "hello"
        key = f"artifacts/fit/{spec(1).ref.key}/deep/result.txt"
        place.write(key, b"hallo")
        (problem,) = there.problems(spec(1).ref)
        assert "checksum" in problem
        there.remove(spec(1).ref)
        assert not ArtifactStore(place.seen_from("d")).is_done(spec(1).ref)

    def test_a_part_is_copied_to_and_from_a_folder(self, place: Place, tmp_path: Path) -> None:
        small = filled_store(tmp_path / "one", N_TEXTS)
        everything = part_of(small.store, ["*"], None)
        transfer(everything, place.seen_from("a"), SilentProgress())
        (there,) = all_stores(place.seen_from("b"))
        assert_reads(there, small)
        transfer(part_of(there, ["*"], None), tmp_path / "two", SilentProgress())
        (back,) = all_stores(tmp_path / "two")
        assert_reads(back, small)
        assert verify(back, SilentProgress()) == []
