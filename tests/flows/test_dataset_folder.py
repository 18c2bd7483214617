"""A home as a data set of the Hugging Face hub: the folder that is uploaded, and what opens it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray as xr
import yaml
import zarr

import permafrost
from permafrost.flows import dataset_folder
from permafrost.storage.artifacts import ArtifactStore, parse_ref
from permafrost.storage.errors import StoreBusyError
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from tests.documents import snippet
from tests.flows.test_cli import Cli
from tests.storage.small_store import filled_store, flip

NAMED = "hf://datasets/lab/features"


@pytest.fixture(autouse=True)
def _own_replicas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "c"))


@pytest.fixture
def cli(finished_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    shutil.copytree(finished_home, tmp_path / "home")
    return Cli(tmp_path / "home", capsys)


@pytest.fixture
def folder(cli: Cli, tmp_path: Path) -> Path:
    """What is uploaded: one task of a home."""
    target = tmp_path / "dataset"
    told = cli("push", "--to", str(target), "--corpus", "ratio 0.2", "--as", "dataset")
    assert "texts, examples and labels of corpus/" in told
    return target


def header(folder: Path) -> dict[str, Any]:
    _, text, body = (folder / "README.md").read_text().split("---\n", 2)
    assert "# Features" in body
    return yaml.safe_load(text)


def on_the_hub(folder: Path, cache: Path) -> Path:
    """What the hub's client leaves of an uploaded folder: links to files named by their content."""
    snapshot = cache / "snapshots" / "0123abcd"
    for number, path in enumerate(sorted(p for p in folder.rglob("*") if p.is_file())):
        blob, link = cache / "blobs" / str(number), snapshot / path.relative_to(folder)
        for one in (blob, link):
            one.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def test_the_card_names_tables_that_are_there(folder: Path) -> None:
    configs = {c["config_name"]: c["data_files"][0]["path"] for c in header(folder)["configs"]}
    kinds = sorted(name.partition("-")[0] for name in configs)
    assert kinds == ["examples", "segments", "texts"]
    for pattern in configs.values():
        tables = sorted(folder.glob(pattern))
        assert tables
        assert all(pq.read_table(t).num_rows for t in tables)


def test_the_folder_names_nothing_of_this_machine_and_has_no_odd_files(folder: Path) -> None:
    assert not list(folder.rglob("writer.lock"))
    assert not list(folder.rglob(".*"))
    assert all(len(list(p.iterdir())) < 10_000 for p in folder.rglob("*") if p.is_dir())


def test_a_writer_at_work_keeps_its_lock(cli: Cli, folder: Path) -> None:
    (store,) = all_stores(folder)
    with writing(store):
        cli("push", "--to", str(folder), "--corpus", "ratio 0.2", "--as", "dataset")
        with pytest.raises(StoreBusyError):
            writing(store).__enter__()


def test_a_readme_of_somebody_is_not_replaced(cli: Cli, folder: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "README.md").write_text("# My project\n")
    push = ("--corpus", "ratio 0.2", "--as", "dataset")
    for flags in ((), ("--dry-run",)):
        said = cli("push", "--to", str(project), *push, *flags, code=2)
        assert "README.md is there and is no card" in said
    assert [p.name for p in project.iterdir()] == ["README.md"]
    assert (project / "README.md").read_text() == "# My project\n"
    cli("push", "--to", str(folder), *push)


def test_zarr_and_xarray_open_it_where_it_is(folder: Path) -> None:
    (store,) = all_stores(folder)
    group: Any = zarr.open_group(store.zarr_path, mode="r")
    row = store.segment(0).table.slice(0, 1).to_pylist()[0]
    start, stop = row["token_start"], row["token_start"] + row["n_tokens"]
    reader = permafrost.open(folder).reader("hidden/2", [row["text"]], tokens="all")
    _, batch = next(reader.in_order(1))
    assert np.array_equal(group["hidden/2"][start:stop].astype(np.float32), batch[0])
    with xr.open_zarr(store.zarr_path / "hidden", chunks=None) as opened:
        assert np.array_equal(opened["2"][start:stop].values, group["hidden/2"][start:stop])


def test_an_uploaded_folder_is_pulled_by_its_name(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    def download(repo_id: str, **named: Any) -> str:
        asked.append((repo_id, named["repo_type"], named["revision"]))
        return str(on_the_hub(folder, tmp_path / f"hub {len(asked)}"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    cli = Cli(tmp_path / "mine", capsys)
    (corpus,) = ArtifactStore(folder).refs("corpus")
    done = cli.json("pull", "--from", f"{NAMED}@v1", "--corpus", f"corpus/{corpus.key}")
    assert done["n_cells"] > 0
    assert asked == [("lab/features", "dataset", "v1")]
    (store,), (there,) = all_stores(cli.home), all_stores(folder)
    assert verify(store, SilentProgress()) == []
    assert store.arrays() == there.arrays()
    # With what it takes to use them: the labels.
    table = ArtifactStore(cli.home).open(corpus) / "examples.parquet"
    assert pq.read_table(table).equals(
        pq.read_table(ArtifactStore(folder).open(corpus) / table.name)
    )
    assert permafrost.open(tmp_path / "other").pull(NAMED).as_json()["n_cells"] == done["n_cells"]


def test_what_the_hub_does_not_take_is_refused_before_anything_is_copied(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "dataset"
    asked = ("push", "--to", str(target), "--as", "dataset")
    for name, most, said in (
        ("MAX_ENTRIES", 0, "segments, each an entry"),
        ("MAX_FILES", 9, "files; the hub takes 9"),
        ("MAX_FILE_BYTES", 99, "bytes in its largest file"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(dataset_folder, name, most)
            assert said in cli(*asked, code=2)
    assert not target.exists()


def test_what_is_wrong_with_a_name_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(tmp_path / "mine", capsys)
    for name in ("hf://datasets/lab", "hf://models/lab/x", "hf://datasets/a/b/c"):
        assert "no data set of the hub; write hf://datasets/OWNER/NAME" in cli(
            "pull", "--from", name, code=2
        )

    def download(repo_id: str, **named: Any) -> str:
        raise OSError("401 Client Error: no such repository\nlong talk")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    told = cli("pull", "--from", NAMED, code=2)
    assert "cannot be downloaded: 401 Client Error: no such repository. Nothing was copied" in told
    assert not cli.home.exists()


def test_a_corpus_is_copied_once_and_checked(cli: Cli, folder: Path) -> None:
    (ref,) = ArtifactStore(folder).refs("corpus")
    manifest = ArtifactStore(folder).folder(ref) / "artifact.json"
    before = manifest.stat().st_ino
    again = ("push", "--to", str(folder), "--corpus", f"corpus/{ref.key}")
    cli(*again)
    assert manifest.stat().st_ino == before
    flip(manifest.with_name("examples.parquet"), 20)
    cli(*again)  # what was damaged there is put right
    assert ArtifactStore(folder).problems(ref) == []
    flip(ArtifactStore(cli.home).folder(ref) / "examples.parquet", 20)
    ArtifactStore(folder).remove(ref)
    assert "checksum" in cli(*again, code=1)
    assert not ArtifactStore(folder).is_done(ref)


def test_a_corpus_that_names_files_elsewhere_is_refused(cli: Cli, tmp_path: Path) -> None:
    there = ArtifactStore(cli.home)
    ref = parse_ref(cli.json("ls", "--stage", "corpus")["artifacts"][0]["artifact"])
    path = there.folder(ref) / "artifact.json"
    fields = json.loads(path.read_text())
    del fields["checksum"]
    fields["files"]["../../evil.json"] = fields["files"]["corpus.json"]
    path.write_text(json.dumps(fields))
    (there.folder(ref) / "../../evil.json").write_bytes(
        (there.folder(ref) / "corpus.json").read_bytes()
    )
    told = cli("push", "--to", str(tmp_path / "b"), "--corpus", f"corpus/{ref.key}", code=1)
    assert "names the file '../../evil.json'" in told
    assert not list(tmp_path.glob("b/**/evil.json"))


@pytest.mark.deep
def test_the_tables_load_as_a_data_set(folder: Path, tmp_path: Path) -> None:
    import datasets

    for config in header(folder)["configs"]:
        loaded = datasets.load_dataset(
            str(folder), config["config_name"], split="train", cache_dir=str(tmp_path / "cache")
        )
        tables = [pq.read_table(p) for p in sorted(folder.glob(config["data_files"][0]["path"]))]
        assert len(loaded) == sum(t.num_rows for t in tables)
        assert loaded.column_names == tables[0].column_names


def test_a_store_without_corpora_has_a_card_too(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "a", 5)
    permafrost.open(tmp_path / "a").push(tmp_path / "b", form="dataset")
    assert [c["config_name"] for c in header(tmp_path / "b")["configs"]] == ["segments"]
    assert f"{len(small.texts)} texts" in (tmp_path / "b" / "README.md").read_text()


@pytest.mark.deep
def test_the_snippet_of_the_page_runs(
    finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_home, ".permafrost")
    code = snippet("a folder for the hub").replace("CoLA", "ratio 0.2").replace('"6"', '"2"')
    found: dict[str, Any] = {}
    exec(compile(code, "sharing.md", "exec"), found)
    reader = permafrost.open("folder").reader("hidden/2", [found["first"]["text"]], tokens="all")
    _, batch = next(reader.in_order(1))
    assert np.array_equal(found["rows"].astype(np.float32), batch[0])
