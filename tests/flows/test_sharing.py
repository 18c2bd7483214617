"""`push` and `pull` as a user meets them, and the same in Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import permafrost
from permafrost.storage import artifacts
from permafrost.storage.artifacts import ArtifactStore, parse_ref
from permafrost.storage.errors import InputError
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from tests.documents import snippet
from tests.flows.test_cli import Cli
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import IDENTITY, filled_store, flip, new_store

pytestmark = pytest.mark.deep


@pytest.fixture(autouse=True)
def _own_replicas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "c"))


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path / "home", capsys)


@pytest.fixture
def there(finished_home: Path, tmp_path: Path) -> Path:
    """Another home, in which an experiment has run."""
    shutil.copytree(finished_home, tmp_path / "there")
    return tmp_path / "there"


def test_a_task_of_another_home_is_pulled_and_pushed_on(
    server: ObjectServer, cli: Cli, there: Path
) -> None:
    asked = ("pull", "--from", str(there), "--arrays", "hidden/2", "--corpus", "ratio 0.2")
    said = cli.json(*asked, "--dry-run")
    assert said["dry_run"]
    assert not cli.home.exists()
    assert [row["array"] for row in said["arrays"]] == ["hidden/2", "span", "token_ids"]
    assert cli.json(*asked) == {**said, "dry_run": False}
    (store,) = all_stores(cli.home)
    assert store.arrays() == ["hidden/2", "span", "token_ids"]
    (corpus,) = [
        row["artifact"]
        for row in Cli(there, cli._capsys).json("ls", "--stage", "corpus")["artifacts"]
        if row["of"][0]["task"] == "ratio 0.2"
    ]
    folder = ArtifactStore(there).folder(parse_ref(corpus))
    digests = pq.read_table(folder / "texts.parquet").column("digest").to_pylist()
    assert (store.locate(digests).segment >= 0).all()
    assert cli.json("pull", "--from", str(there), "--corpus", corpus, "--dry-run")["n_cells"] > 0

    told = cli("push", "--to", "s3://bucket/lab")
    assert "> s3://bucket/lab" in told
    assert "0 cells were there already" in told
    assert "copied 0 cells" in cli("push", store.store_id[:8], "--to", "s3://bucket/lab")
    assert "every checksum" in cli.without_home("verify", "--home", "s3://bucket/lab")


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_a_corpus_that_another_version_named_is_refused_before_anything_is_copied(
    cli: Cli, there: Path, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    monkeypatch.setattr(artifacts, "KEY_VERSION", artifacts.KEY_VERSION + 1)
    asked = ("pull", "--from", str(there), "--arrays", "hidden/2")
    said = cli(*asked, "--corpus", "ratio 0.2", *how, code=2)
    assert "names corpora in another way; nothing of it was copied" in said
    assert all_stores(cli.home) == []
    cli(*asked, *how)


def test_the_same_in_python(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "a", 5)
    here = permafrost.open(tmp_path / "b")
    would = here.pull(tmp_path / "a", arrays="hidden/1, pooled/*", dry_run=True)
    assert not here.folder.exists()
    done = here.pull(permafrost.open(tmp_path / "a"), arrays=["hidden/1", "pooled/*"])
    assert done.as_json() == would.as_json()
    assert done.as_json()["n_texts"] == 5
    back = here.push(tmp_path / "c", small.store.store_id[:6])
    assert back.plan.n_cells == done.plan.n_cells
    _, rows = next(permafrost.open(tmp_path / "c").reader("hidden/1", small.texts).in_order(2))
    assert rows.data.shape[1] == 8


def test_the_snippet_of_the_page_runs(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(there.parent)
    there.rename("elsewhere")
    shutil.copytree("elsewhere/artifacts", ".permafrost/artifacts")
    shutil.copytree("elsewhere/runs", ".permafrost/runs")
    code = snippet("pulls from another home").replace("CoLA", "ratio 0.5")
    exec(compile(code, "sharing.md", "exec"), {})
    assert [s.arrays() for s in permafrost.open("archive").stores()] == [
        s.arrays() for s in permafrost.open(".permafrost").stores()
    ]


@pytest.mark.skipif(
    not Path("/proc/self").exists(),
    reason="/proc is the place where nobody may write, and other systems than Linux have none",
)
@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_a_place_that_cannot_be_written_to_is_told_as_such(cli: Cli, how: tuple[str, ...]) -> None:
    filled_store(cli.home, 5)
    said = cli("push", "--to", "/proc/x", *how, code=2)
    assert "/proc may not be written to" in said
    assert "choose another place" in said


def test_what_is_wrong_is_told(cli: Cli, tmp_path: Path) -> None:
    said = cli("pull", "--from", str(tmp_path / "nowhere"), code=2)
    assert "there is no home" in said
    assert "name one with --from, or" in said
    small = filled_store(tmp_path / "there", 5)
    named = ("--from", str(tmp_path / "there"))
    for empty in ("", "features/"):
        assert "the ID of the store is empty" in cli("pull", empty, *named, code=2)
    assert "an id that begins with 'ffff'" in cli("pull", "ffff", *named, code=2)
    assert "no corpus of a task 'CoLA'" in cli("pull", *named, "--corpus", "CoLA", code=2)
    other = IDENTITY.model_copy(update={"storage_dtype": "float32"})
    new_store(tmp_path / "there", identity=other)
    assert "2 feature stores of" in cli("pull", *named, code=2)
    cli("pull", small.store.store_id, *named)
    assert "both homes are" in cli("pull", "--from", str(cli.home), code=2)
    (store,) = all_stores(cli.home)
    with writing(store):
        flip(small.store.shard_path(0, "hidden/1"), 3)
        (store.root / "receipts/000000/hidden/1.json").unlink()
        assert "is being written" in cli("pull", small.store.store_id, *named, code=1)
    assert "did not arrive as its receipt says" in cli("pull", small.store.store_id, *named, code=1)
    assert verify(store, SilentProgress()) == []
    flip(small.store.root / "store.json", 40)
    flip(small.store.root / "copies/store.json", 40)
    assert "is damaged" in cli("pull", small.store.store_id[:9], *named, code=1)


WATCHED = """
import sys
from pathlib import Path
from permafrost.flows.home import Home, open_home
source, target = map(Path, sys.argv[1:])
Home(target).pull(source, arrays="hidden/1")  # everything is imported now
seen = []
def hook(event, arguments):
    if event in ("pickle.find_class", "compile", "os.system", "subprocess.Popen", "ctypes.dlopen"):
        seen.append((event, arguments))
    elif event == "exec":
        seen.append((event, arguments[0].co_filename))
sys.addaudithook(hook)
Home(target).pull(source)
print(seen)
assert not seen
"""


def test_nothing_of_another_home_is_executed(tmp_path: Path) -> None:
    # Its recipe is of a plug-in, and its home has files that Python or pickle would run.
    identity = IDENTITY.model_copy(update={"recipe": {"kind": "evil", "code": "0" * 64}})
    small = new_store(tmp_path / "there", identity=identity)
    small.add(["a", "b"], [5, 6])
    for folder in (small.store.root, tmp_path / "there", small.store.zarr_path / "hidden/1"):
        for name in ("evil.py", "conftest.py", "sitecustomize.py", "__init__.py", "hidden.pkl"):
            (folder / name).write_text("raise SystemExit('executed')")
    arguments = [str(tmp_path / "there"), str(tmp_path / "here")]
    subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments],
        check=True,
        cwd=tmp_path / "there",
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    found = {p.name for p in (tmp_path / "here").rglob("*") if p.is_file()}
    assert not any(name.endswith((".py", ".pkl")) for name in found)
    assert verify(all_stores(tmp_path / "here")[0], SilentProgress()) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"arrays": []}, r"arrays is \[\], which names none to copy"),
        ({"arrays": 5}, "arrays is 5; give names of arrays"),
        ({"arrays": ["hidden/1", 5]}, r"arrays is \['hidden/1', 5\]; give names"),
        ({"store": 7}, "store is 7, of type int; give a name, or None"),
        ({"corpus": 7}, "corpus is 7, of type int"),
        ({"form": "zip"}, "form is 'zip'; there are home, dataset"),
    ],
)
def test_arguments_of_a_program_are_checked(
    tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    filled_store(tmp_path / "a")
    with pytest.raises(InputError, match=says):
        permafrost.open(tmp_path / "a").push(tmp_path / "b", dry_run=True, **given)


@pytest.mark.parametrize("arrays", [5, ["hidden/1", 5], None])
def test_names_of_arrays_to_drop_are_checked_alike(tmp_path: Path, arrays: Any) -> None:
    filled_store(tmp_path / "a")
    with pytest.raises(InputError, match="give names of arrays, or patterns of them"):
        permafrost.open(tmp_path / "a").drop(arrays=arrays, dry_run=True)
