"""What a later version has written is told, and neither called damaged nor removed."""

import shutil
from pathlib import Path

import pytest

from permafrost.flows.damage import artifact_problems, store_problems
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.progress import SilentProgress
from permafrost.storage.sealed import read_sealed, sealed_bytes
from tests.flows.test_cli import Cli
from tests.storage.small_store import filled_store

LATER = {"format_version": 2, "a field of it": 1}


def _make_later(path: Path) -> None:
    fields, _ = read_sealed(path)
    path.write_bytes(sealed_bytes(fields | LATER))


def test_an_artifact_and_a_receipt_of_a_later_version_are_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, artifacts = filled_store(tmp_path, 5), ArtifactStore(tmp_path)
    spec = ArtifactSpec(stage="corpus", config={})
    with artifacts.publishing(spec, {}) as draft:
        (draft.folder / "a.json").write_text("{}")
    _make_later(artifacts.folder(spec.ref) / "artifact.json")
    _make_later(small.store.root / "receipts/000001/hidden/1.json")
    (of_store,) = store_problems(small.store.root, SilentProgress())
    assert "receipts/000001/hidden/1.json has receipt format 2, this program reads 1" in of_store
    assert of_store.endswith("; the rest of this store was not checked")
    (of_artifact,) = artifact_problems(artifacts, spec.ref)
    assert "artifact.json has artifact format 2, this program reads 1" in of_artifact
    cli = Cli(tmp_path, capsys)
    said = cli("verify", code=1)
    assert of_store in said
    assert of_artifact in said
    assert "use a version of permafrost that reads it" in cli("repair", spec.ref.key, code=2)
    assert artifacts.is_done(spec.ref)


@pytest.mark.parametrize("how", ["record", "table", "copied"])
def test_a_store_that_cannot_be_read_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    stores = [filled_store(tmp_path, 5, dtype=d).store for d in ("float16", "float32")]
    wrong, good = (store.root for store in stores)
    match how:
        case "record":
            (wrong / "store.json").write_text('{"x')
        case "table":
            (wrong / "segments" / "000000.parquet").unlink()
        case _:
            wrong = shutil.copytree(wrong, wrong.with_name("0" * 32))
    cli = Cli(tmp_path, capsys)
    said, listed = cli("ls"), cli.json("ls")
    assert good.name[:12] in said
    assert f"1 more cannot be read, such as features/{wrong.name}" in said
    assert good.name in {store["store_id"] for store in listed["stores"]}
    assert listed["damaged"] == [f"features/{wrong.name}"]


def test_a_copied_folder_of_a_store_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled_store(tmp_path, 5).store.root
    renamed = root.rename(root.with_name("0" * 32))
    cli = Cli(tmp_path, capsys)
    for content in ((renamed / "store.json").read_bytes(), b'{"x'):
        (renamed / "store.json").write_bytes(content)
        said = cli("verify", code=1)
        assert f"copied or renamed: rename it to {root.name}" in said
        assert "repair" not in said.replace("run 'permafrost verify'", "")
    # The copy of the record is still of this folder: then it is the record that was mixed up.
    renamed.rename(root)
    other = filled_store(tmp_path, 5, dtype="float32").store.root
    shutil.copy(other / "store.json", root)
    assert f"'permafrost repair {root.name[:12]}' writes it again" in cli("verify", code=1)
    cli("repair", root.name[:12])
    assert "every checksum" in cli("verify")
