"""What a home takes: every grouping counts every file once, locally and on an object store."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.flows.disk.by_corpus import NO_CORPUS, OVERHEAD, SHARED
from permafrost.flows.disk.parts import Use, part_of
from permafrost.flows.disk.use import GROUPINGS, By, disk_use
from permafrost.storage import replica
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.progress import SilentProgress
from tests.flows.test_cli import Cli
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import ARRAYS, IDENTITY, SmallStore, new_store

LENGTHS = {"a": 3, "b": 5, "c": 7, "d": 2, "e": 4}
CORPORA = {"first": "ab", "second": "bc"}
OTHER = IDENTITY.model_copy(update={"recipe": {"kind": "plain", "specials": {"keep": False}}})


def publish_corpus(home: Path, task: str, texts: str) -> None:
    """A corpus of single letters."""
    digests = {text: small_digest(text) for text in texts}
    spec = ArtifactSpec(stage="corpus", config={"task": task})
    with ArtifactStore(home).publishing(spec, {}) as draft:
        table = pa.table({"digest": list(digests.values()), "text": list(digests)})
        pq.write_table(table, draft.folder / "texts.parquet")
        pq.write_table(pa.table({"split": ["train"]}), draft.folder / "examples.parquet")
        draft.summary = {"task": task}


def small_digest(text: str) -> str:
    return SmallStore(None, [text]).digests[0]  # type: ignore[arg-type]


def build(home: Path) -> list[SmallStore]:
    """Two stores: of all texts, and of one that both corpora have."""
    stores: list[SmallStore] = []
    for identity, texts in ((IDENTITY, "abcde"), (OTHER, "b")):
        small = new_store(home, identity=identity)
        small.add(list(texts), [LENGTHS[t] for t in texts])
        stores.append(small)
    for task, texts in CORPORA.items():
        publish_corpus(home, task, texts)
    return stores


def use(home: Path, by: By) -> dict[str, Use]:
    return {row.what: row for row in disk_use(home, by, SilentProgress())}


def on_disk(home: Path) -> int:
    return sum(p.lstat().st_blocks * 512 for p in home.rglob("*") if p.is_file())


def test_every_grouping_counts_every_file_once_the_largest_first(tmp_path: Path) -> None:
    build(tmp_path)
    for by in GROUPINGS:
        rows = disk_use(tmp_path, by, SilentProgress())
        assert sum(row.bytes for row in rows) == on_disk(tmp_path), by
        assert [row.bytes for row in rows] == sorted((r.bytes for r in rows), reverse=True), by
    by_array = use(tmp_path, "array")
    shards = (tmp_path / "features").glob("*/features.zarr/hidden/1/**/*")
    assert by_array["hidden/1"].bytes == sum(
        p.stat().st_blocks * 512 for p in shards if p.is_file()
    )
    assert {*ARRAYS, "token_ids", "artifacts", "receipts"} <= by_array.keys()
    # Two recipes of one kind are told apart by what differs.
    assert {"plain:specials.keep=True", "plain:specials.keep=False"} <= use(
        tmp_path, "recipe"
    ).keys()
    assert use(tmp_path, "backbone").keys() == {"somewhere", "artifacts"}


def test_a_text_of_two_corpora_is_counted_once_and_by_its_tokens(tmp_path: Path) -> None:
    first, second = build(tmp_path)
    rows = use(tmp_path, "corpus")
    assert {name: rows[name].n_texts for name in (*CORPORA, SHARED, NO_CORPUS)} == {
        "first": 1,
        "second": 1,
        SHARED: 2,
        NO_CORPUS: 2,
    }
    # All texts are in one segment: its files divide by tokens, or by texts.
    (number,) = first.store.segments()

    def bytes_of(small: SmallStore, text: str) -> float:
        on_tokens, on_texts = 0, 0
        for array in small.store.committed(number):
            n_bytes = small.store.shard_path(number, array).stat().st_blocks * 512
            on_tokens += n_bytes if small.store.spec(array).axis == "token" else 0
            on_texts += n_bytes if small.store.spec(array).axis == "text" else 0
        tables = (
            *small.store.root.rglob("000000.parquet"),
            *small.store.root.glob("receipts/*/**/*"),
        )
        on_texts += sum(p.stat().st_blocks * 512 for p in tables if p.is_file())
        lengths = [LENGTHS[t] for t in small.texts]
        return on_tokens * LENGTHS[text] / sum(lengths) + on_texts / len(lengths)

    shared = bytes_of(first, "b") + bytes_of(second, "b")
    assert rows["first"].bytes == pytest.approx(bytes_of(first, "a"), abs=1)
    assert rows["second"].bytes == pytest.approx(bytes_of(first, "c"), abs=1)
    assert rows[SHARED].bytes == pytest.approx(shared, abs=1)
    assert rows["first"].with_shared == pytest.approx(bytes_of(first, "a") + shared, abs=1)
    assert rows[NO_CORPUS].bytes == pytest.approx(
        bytes_of(first, "d") + bytes_of(first, "e"), abs=1
    )


def test_a_text_that_a_store_has_twice_is_of_the_same_corpora(tmp_path: Path) -> None:
    first, _ = build(tmp_path)
    before = use(tmp_path, "corpus")
    texts = ["a", "b", "d"]  # of one corpus, of both, of none
    first.add(texts, [LENGTHS[t] for t in texts])
    rows = use(tmp_path, "corpus")
    for name in ("first", SHARED, NO_CORPUS):
        assert rows[name].n_texts == before[name].n_texts
        assert rows[name].bytes > before[name].bytes
    assert rows["second"].bytes == before["second"].bytes
    more = rows["first"].with_shared or 0
    assert more > (before["first"].with_shared or 0) + rows["first"].bytes - before["first"].bytes
    assert sum(row.bytes for row in rows.values()) == on_disk(tmp_path)


def test_a_store_that_cannot_be_read_is_overhead_and_still_counted(tmp_path: Path) -> None:
    first, _ = build(tmp_path)
    (first.store.root / "segments" / "000000.parquet").write_bytes(b"no table")
    rows = use(tmp_path, "corpus")
    assert rows[OVERHEAD].bytes > on_disk(first.store.root) - 4096
    (first.store.root / "store.json").write_bytes(b"{")
    assert "stores whose store.json is damaged" in use(tmp_path, "backbone")
    assert sum(row.bytes for row in use(tmp_path, "corpus").values()) == on_disk(tmp_path)


def test_on_an_object_store_objects_are_counted_wherever_they_are(
    server: ObjectServer, tmp_path: Path
) -> None:
    home = replica.attach("s3://bucket/home", tmp_path / "a", SilentProgress())
    build(home)
    replica.detach(home)
    # A machine that has fetched nothing yet.
    other = replica.attach("s3://bucket/home", tmp_path / "b", SilentProgress())
    for by in GROUPINGS:
        rows = disk_use(other, by, SilentProgress())
        assert sum(row.bytes for row in rows) == sum(map(len, server.objects.values())), by


def test_the_command_prints_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path / "home")
    cli = Cli(tmp_path / "home", capsys)
    found = cli.json("du", "--by", "corpus")
    assert found["by"] == "corpus"
    assert found["total"] == sum(row["bytes"] for row in found["rows"]) == on_disk(cli.home)
    (shared,) = (row for row in found["rows"] if row["what"] == SHARED)
    assert shared["n_texts"] == 2
    assert "counted once" in cli("du", "--by", "corpus")
    assert "hidden/1" in cli("du")
    assert "backbone, recipe, corpus" in cli("du", "--by", "month", code=2)


@pytest.mark.parametrize("linked", ["features", "artifacts", "a store"])
def test_what_links_lead_to_on_another_disk_counts(tmp_path: Path, linked: str) -> None:
    first, _ = build(home := tmp_path / "home")
    by = {by: use(home, by) for by in GROUPINGS}
    place = first.store.root if linked == "a store" else home / linked
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    (home / "features" / "zz").symlink_to(tmp_path / "elsewhere")  # counted already
    for name, before in by.items():
        rows = use(home, name)
        rows.pop("other files")  # the links
        assert rows == before


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("features/ab/features.zarr/hidden/1/c/0/0", "hidden/1"),
        ("features/ab/features.zarr/hidden/1/zarr.json", "hidden/1"),
        ("features/ab/features.zarr/hidden/zarr.json", "metadata"),
        ("features/ab/features.zarr/zarr.json", "metadata"),
        ("features/ab/features.zarr/span/zarr.json", "span"),
        ("features/ab/features.zarr/pooled/hidden_mean/1/c/0/0", "pooled/hidden_mean/1"),
        ("features/ab/features.zarr/pooled/hidden_mean/zarr.json", "metadata"),
        ("features/ab/receipts/000000/hidden/1.json", "receipts"),
        ("features/ab/store.json", "metadata"),
        ("artifacts/fit/ab/head.json", "fit"),
        ("runs/tiny.json", "runs"),
        ("notes.txt", "other files"),
    ],
)
def test_files_belong_to(path: str, what: str) -> None:
    assert part_of(path).what == what


def test_weights_of_rows_do_not_need_whole_numbers(tmp_path: Path) -> None:
    small = new_store(tmp_path)
    texts = [f"text {i}" for i in range(20)]
    lengths = np.random.default_rng(3).integers(1, 33, len(texts)).tolist()
    small.add(texts, lengths)
    rows = use(tmp_path, "corpus")
    assert rows[NO_CORPUS].n_texts == len(texts)
    assert sum(row.bytes for row in rows.values()) == on_disk(tmp_path)
