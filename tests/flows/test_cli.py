"""The command line as a user meets it: what it prints, what it writes, its exit codes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from permafrost.flows.records.runs import read_run, run_path, write_run
from permafrost.storage.features.receipts import receipt_path
from permafrost.storage.features.store import all_stores
from tests.flows.conftest import tiny_experiment
from tests.storage.small_store import filled_store, flip, snapshot

TEXTS = ["the deep lake freezes slowly", "ice", "snow melts", "ice"]


class Cli:
    """Runs `permafrost` in this process and keeps what it printed."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self._capsys = home, capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        return self.without_home(*arguments, "--home", str(self.home), code=code)

    def without_home(self, *arguments: str, code: int = 0) -> str:
        """For commands that need none."""
        from permafrost.flows.cli import main

        self._capsys.readouterr()  # what a fixture printed before
        argv = sys.argv
        sys.argv = ["permafrost", *arguments]
        try:
            main()
            ended = 0
        except SystemExit as end:
            ended = int(end.code or 0)
        finally:
            sys.argv = argv
        out, err = self._capsys.readouterr()
        assert ended == code, f"exit code {ended}\n{out}\n{err}"
        return " ".join((out + err).split())

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path / "home", capsys)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": TEXTS, "note": ["a", "b", "c", "d"]}), path)
    return path


@pytest.fixture
def finished(finished_home: Path, cli: Cli) -> Cli:
    shutil.copytree(finished_home, cli.home)
    return cli


def extraction(texts: Path, backbone: Path) -> tuple[str, ...]:
    """The arguments of an extraction of all hidden states and the values of one block."""
    what = ("--backbone", str(backbone), "--capture", "hidden=all,values=2")
    return ("extract", str(texts), *what)


def test_extract_fills_the_store_and_then_has_nothing_to_do(
    cli: Cli, texts: Path, tiny_bert: Path
) -> None:
    arguments = extraction(texts, tiny_bert)
    first = cli.json(*arguments)
    assert first["n_texts"] == 4
    assert first["n_tokens_computed"] == 7 + 3 + 4
    group = zarr.open_group(first["path"], mode="r")
    assert group["values/2"].metadata.dimension_names == ("token", "d_value")
    assert cli.json(*arguments)["n_cells_computed"] == 0


def test_embed_writes_one_row_per_text_in_order(
    cli: Cli, texts: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    cli("embed", str(texts), "--backbone", str(tiny_bert), "--method", "mean", "-o", str(out))
    table = pq.read_table(out)
    assert table.column("text").to_pylist() == TEXTS
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 32)
    vectors = table.column("embedding").to_pylist()
    assert vectors[1] == vectors[3]
    assert vectors[0] != vectors[1]
    recipe = json.loads(table.schema.metadata[b"permafrost"])
    assert recipe["arrays"] == ["hidden/3"]
    assert recipe["method"] == "mean"
    assert recipe["store"]["recipe"]["kind"] == "plain"


def test_embed_with_a_trained_head(finished: Cli, texts: Path, tmp_path: Path) -> None:
    fits = [m for m in finished.json("ls")["artifacts"] if m["artifact"].startswith("fit/")]
    out = tmp_path / "out.parquet"
    done = finished.json("embed", str(texts), "--head", fits[0]["artifact"], "-o", str(out))
    assert done["n_texts"] == len(pq.read_table(out)) == 4
    # The best of a grid gives the vectors of the fit that was chosen.
    choice = next(
        m for m in finished.json("ls")["artifacts"] if m["artifact"].startswith("choose/")
    )
    found: list[Any] = []
    for artifact in (choice["artifact"], choice["summary"]["fit"]):
        finished("embed", str(texts), "--head", artifact, "-o", str(out))
        found.append(pq.read_table(out)["embedding"].to_pylist())
    assert found[0] == found[1]
    score = next(
        m["artifact"]
        for m in finished.json("ls")["artifacts"]
        if m["artifact"].startswith("score/")
    )
    assert "give one of stage fit" in finished(
        "embed", str(texts), "--head", score, "-o", str(out), code=2
    )


def test_run_plan_and_report_need_no_server(finished: Cli, experiment_file: Path) -> None:
    plan = finished.json("plan", str(experiment_file))
    assert plan["n_new_texts"] == 0
    assert {row["n_run"] for row in plan["stages"]} == {0}
    assert "no backbone is loaded" in finished("plan", str(experiment_file))
    assert finished("report", str(experiment_file)).endswith("report.html")


def test_run_says_that_everything_was_reused(finished: Cli, experiment_file: Path) -> None:
    serially = ("--engine", "serial")
    assert "everything was reused" in finished("run", str(experiment_file), *serially)
    again = finished.json("run", str(experiment_file), *serially)
    assert again["computed"] == {}
    assert again["run"] == "tiny@3"
    assert sum(again["reused"].values()) == 41
    changed = finished("run", str(experiment_file), *serially, "--set", "methods.GLOT.head.tau=0.5")
    assert "computed: 8 fit, 4 choose, 4 score, 1 report" in changed
    assert " s with starting, run tiny@4. Report:" in changed
    runs = finished.json("runs")["runs"]
    assert [sum(run["ended"]["computed"].values()) for run in runs] == [41, 0, 0, 17]
    assert [run["overrides"] for run in runs[2:]] == [[], ["methods.GLOT.head.tau=0.5"]]
    assert runs[2]["ended"]["results"] == runs[0]["ended"]["results"]


def test_listings(finished: Cli) -> None:
    listing = finished.json("ls")
    (store,) = listing["stores"]
    assert store["incomplete_cells"] == 0
    assert store["arrays"] == ["hidden/1", "hidden/2", "span", "token_ids"]
    assert store["store_id"][:12] in finished("ls")
    shown = finished.json("show", store["store_id"][:8])
    assert shown["identity"]["max_length"] == 60
    assert set(shown["backbone"]) == {"source", "revision"}
    assert shown["n_texts"] == store["n_texts"]
    artifact = listing["artifacts"][0]["artifact"]
    assert finished.json("show", artifact)["key"] == artifact.split("/")[1]
    assert "'abcdef'" in finished("show", "abcdef", code=2)
    usage = finished.json("du")
    assert sum(r["bytes"] for r in usage["rows"]) <= usage["total"]
    assert any(r["what"] == "hidden/1" and r["bytes"] > 0 for r in usage["rows"])


def test_why_names_what_differs(finished: Cli, experiment_file: Path) -> None:
    said = finished(
        "why", "fit", "--experiment", str(experiment_file), "--set", "methods.mean.optim.lr=0.5"
    )
    assert "fit mean · ratio 0.2 · seed 0 mean: optim.lr 0.01 -> 0.5 compared with fit/" in said
    said = finished("why", "fit", "--experiment", str(experiment_file))
    assert "nothing would run: every fit of this experiment is published" in said
    assert finished.json("why", "fit", "--experiment", str(experiment_file)) == []
    wrong = finished("why", "fit", "--set", "foo.bar=1", code=2)
    assert "--set foo.bar=1 changes an experiment, and none was named; add --experiment" in wrong
    latest = finished.json("why", "score")
    assert latest[0]["nearest"] is None
    assert latest[0]["why"].startswith("new: no earlier score of ")


def test_why_of_what_is_no_artifact_says_what_it_is(cli: Cli) -> None:
    begins = filled_store(cli.home, 5).store.store_id[:8]
    assert "nothing of stage 'fit' has been published" in cli("why", "fit", code=2)
    for name in (begins, f"features/{begins}"):
        assert f"'{name}' is a feature store" in cli("why", name, code=2)
    assert "no artifact begins with '0123'" in cli("why", "0123", code=2)


def test_layers_of_an_extraction_are_named_in_what_is_captured(cli: Cli, texts: Path) -> None:
    said = cli("extract", str(texts), "--layers", "half", code=2)
    assert "No such option: --layers; layers belong to" in said
    assert "--capture hidden=half" in said


def test_verify_finds_and_repair_mends_a_flipped_byte(finished: Cli) -> None:
    assert "every checksum" in finished("verify")
    store = all_stores(finished.home)[0]
    shard = store.shard_path(0, "hidden/2")
    content = bytearray(shard.read_bytes())
    content[100] ^= 4
    shard.write_bytes(content)
    said = finished("verify", code=1)
    assert "hidden/2" in said
    assert "1 problem(s)" in said
    assert "1 cell(s) computed again" in finished("repair", store.store_id[:10])
    assert "every checksum" in finished("verify")


def test_a_damaged_record_of_a_store_or_a_run_is_named_and_stops_gc(finished: Cli) -> None:
    store = all_stores(finished.home)[0]
    arrays = snapshot(store.zarr_path)
    record, run = store.root / "store.json", run_path(finished.home, "tiny")
    for path, field in ((record, b'"d_model": '), (run, b'"finished": "')):
        whole = path.read_bytes()
        at = whole.index(field) + len(field)
        path.write_bytes(whole[:at] + b"9" + whole[at + 1 :])
        assert f"{path.name} is damaged: its checksum" in finished("verify", code=1)
        stopped = finished("gc", code=1)
        assert "is damaged" in stopped
        assert "Nothing was removed" in stopped
        if path == run:
            path.write_bytes(whole)
        assert "no cell to compute again" in finished("repair", store.store_id[:10])
        assert path.read_bytes() == whole
        assert "every checksum" in finished("verify")
    assert snapshot(store.zarr_path) == arrays


@pytest.mark.parametrize("which", ["projection", "table"])
def test_after_a_repair_every_array_has_the_bytes_that_it_had(
    tiny_bert: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    cli = Cli(tmp_path / "home", capsys)
    capture = "hidden=all@tokens,hidden=2@mean,values=2,attention_rows=1-2"
    cli("extract", str(texts), "--backbone", str(tiny_bert), "--capture", capture)
    store = all_stores(cli.home)[0]
    before = {n: content for n, (_, content) in snapshot(store.zarr_path).items()}
    if which == "table":
        (store.root / "segments" / "000000.parquet").unlink()
    else:
        flip(store.zarr_path / "projections" / "o_proj" / "1" / "c" / "0" / "0", 5)
    flip(store.shard_path(0, "hidden/2"), 5)
    flip(store.shard_path(0, "attention_rows/2"), 5)
    flip(receipt_path(store.root, 0, "hidden/1"), 5)
    cli("verify", code=1)
    said = cli("repair", store.store_id[:10])
    assert "3 cell(s) computed again" in said
    assert "2 of them byte for byte as before; 1 cannot be compared" in said
    assert {n: content for n, (_, content) in snapshot(store.zarr_path).items()} == before
    assert "every checksum" in cli("verify")


def test_verify_recomputes_random_texts(finished: Cli) -> None:
    said = finished("verify", "--recompute", "5")
    assert "hidden/2" in said
    assert "DIFFERS" not in said
    (store,) = all_stores(finished.home)
    assert store.store_id[:12] in said
    assert finished.json("verify", "--recompute", "2")["problems"] == []


def test_a_damaged_store_keeps_no_other_from_being_recomputed(finished: Cli) -> None:
    (store,) = all_stores(finished.home)
    shutil.copytree(store.root, store.root.with_name("0" * 32))
    found = json.loads(finished("verify", "--recompute", "1", "--json", code=1))
    assert {one["where"] for one in found["problems"]} == {"features/000000000000"}
    assert found["recomputed"]


def test_damaged_artifact_is_found_and_dropped(finished: Cli, experiment_file: Path) -> None:
    fit = next(
        m["artifact"] for m in finished.json("ls")["artifacts"] if m["artifact"].startswith("fit/")
    )
    head = finished.home / "artifacts" / fit / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-3])
    assert fit in finished("verify", code=1)
    assert "is removed" in finished("repair", fit)
    assert finished.json("plan", str(experiment_file))["stages"][2]["n_run"] == 1


def test_gc_says_and_then_removes(finished: Cli) -> None:
    assert finished.json("gc", "--dry-run")["removed"] == {}
    record = read_run(run_path(finished.home, "tiny"))
    assert record.workers == 1, "a serial run"
    assert record.threads[0] == 1
    kept = tuple(a for a in record.artifacts if not a.startswith(("report/", "score/")))
    write_run(finished.home, record.model_copy(update={"artifacts": kept}))
    listed = finished.json("gc", "--dry-run")
    assert len(listed["removed"]) == 13
    assert len(finished.json("gc")["removed"]) == 13
    assert finished.json("gc")["removed"] == {}


def wrong_inputs(tiny_bert: Path, texts: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    base = ("extract", str(texts), "--backbone", str(tiny_bert), "--capture")
    embed = ("embed", str(texts), "--backbone", str(tiny_bert), "-o", "out.parquet")
    return {
        "layer": ((*base, "hidden=9"), "hidden 0 to 3"),
        "capture": ((*base, "hiden=all"), "hiden"),
        "backbone": (
            ("extract", str(texts), "--backbone", "no/such/folder", "--capture", "hidden=1"),
            "no/such/folder",
        ),
        "file": (
            ("extract", "nothing.csv", "--backbone", "minilm", "--capture", "hidden=1"),
            "nothing.csv",
        ),
        "column": (
            ("extract", f"{texts}::txt", "--backbone", "minilm", "--capture", "hidden=1"),
            "note",
        ),
        "recipe": ((*base, "hidden=1", "--recipe", "htp2"), "plain"),
        "dtype": ((*base, "hidden=1", "--dtype", "float8"), "float8"),
        "length": ((*base, "hidden=1", "--max-length", "100000"), "100000"),
        "device": ((*base, "hidden=1", "--device", "cuda:7"), "cuda:7"),
        "method": ((*embed, "--method", "median"), "first, hs, last, max, mean"),
        "id": (("show", "abcdef"), "there is no home"),
        "experiment": (("run", "missing.yaml"), "missing.yaml"),
    }


@pytest.mark.parametrize("case", list(wrong_inputs(Path(), Path())))
def test_wrong_input_is_told_with_exit_code_2(
    cli: Cli, texts: Path, tiny_bert: Path, case: str
) -> None:
    arguments, says = wrong_inputs(tiny_bert, texts)[case]
    said = cli(*arguments, code=2)
    assert says in said
    assert "Traceback" not in said
    assert not list(cli.home.rglob("*.parquet")) if cli.home.exists() else True


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seeds": "three"}, "seeds"),
        ({"metods": {}}, "metods"),
        (
            {"methods": {"x": {"kind": "head", "head": {"kind": "glott"}, "layer": "hidden/1"}}},
            "glott",
        ),
        ({"capture": "hidden=7"}, "hidden 0 to 3"),
        ({"name": "Not A Name"}, "Not A Name"),
        ({"backbone": {"source": "${NO_SUCH_VARIABLE}"}}, "NO_SUCH_VARIABLE"),
    ],
)
def test_wrong_experiment_names_the_field_and_the_value(
    cli: Cli, tiny_bert: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    path = tmp_path / "wrong.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({**tiny_experiment(tiny_bert), **change}))
    assert says in cli("plan", str(path), code=2)
    assert not cli.home.exists()


def test_wrong_data_found_by_a_stage_is_told_in_one_line(
    cli: Cli, tiny_bert: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("text,label\nhello,a\n,b\n")
    splits = {split: str(tmp_path / "rows.csv") for split in ("train", "dev", "test")}
    tasks = {"T": {"kind": "files", "files": splits, "task": {"kind": "classification"}}}
    path = tmp_path / "wrong.yaml"
    path.write_text(
        json.dumps({**tiny_experiment(tiny_bert), "tasks": tasks, "report": {"title": "x"}})
    )
    said = cli("run", str(path), code=2)
    assert "row 2 of" in said
    assert said.count("has the blank text") == 1
    assert "Traceback" not in said


def test_a_command_leaves_without_a_last_search_for_cycles() -> None:
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count()))\n"
        "from permafrost.flows.cli import main\n"
        "sys.argv = ['permafrost', '--help']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, count = done.stdout.split()[-2:]
    assert name == "frozen"
    assert int(count) > 0
