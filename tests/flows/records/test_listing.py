"""`ls`, `show`, `runs`, `compare`, `gc`, `pin`: what people are told of artifacts and of runs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.cli.common import console, print_rows
from permafrost.flows.comparison.config_changes import config_changes
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.graph import Graph, Node
from permafrost.flows.pipeline import run_serially
from permafrost.flows.records.history import find_run, half_path, history_folder, read_history
from permafrost.flows.records.runs import run_path
from permafrost.flows.stopping import Stop, Stopped
from permafrost.flows.terminal import Terminal
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import CorruptDataError
from tests.flows.conftest import MadeOnce
from tests.flows.looked import look
from tests.flows.test_cli import Cli
from tests.storage.small_store import flip

SECOND = ("methods.mean.optim.lr=0.02", "seeds=[0]")


@pytest.fixture(scope="session")
def twice(finished_home: Path, made_once: MadeOnce) -> Path:
    """A home in which the tiny experiment has run twice, with other settings the second time."""

    def run(folder: Path) -> None:
        shutil.copytree(finished_home, folder / "home")
        run_serially(finished_home.parent / "tiny.yaml", folder / "home", SECOND)

    return made_once("twice", run) / "home"


@pytest.fixture
def cli(twice: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(shutil.copytree(twice, tmp_path / "home"), capsys)


def of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    (cell,) = row["of"]
    return cell["method"], cell["task"], cell["seed"]


def test_every_row_says_what_it_is_of_and_its_scores(cli: Cli) -> None:
    rows = cli.json("ls")["artifacts"]
    by_stage: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_stage.setdefault(row["artifact"].partition("/")[0], []).append(row)
    assert {row["of"][0]["task"] for row in by_stage["corpus"]} == {"ratio 0.2", "ratio 0.5"}
    for stage in ("fit", "choose", "score", "control"):
        assert all(None not in of(row) for row in by_stage[stage]), stage
    for stage in ("score", "control"):
        for row in by_stage[stage]:
            metrics = json.loads(
                (cli.home / "artifacts" / row["artifact"] / "metrics.json").read_text()
            )
            assert (row["dev"], row["test"]) == (metrics["dev"], metrics["test"])
    for row in by_stage["fit"]:
        # A head that was scored has the numbers of its score; GLOT has a grid of two layers.
        is_glot = of(row)[0] == "GLOT"
        config = ArtifactStore(cli.home).manifest(ArtifactStore(cli.home).find(row["artifact"]))
        layer = f"layer {config.spec.config['layer']}"
        assert row["candidate"] == (layer if is_glot else None)
        assert is_glot or row["test"] is not None
    scores = {of(row): row for row in by_stage["score"] if of(row)[0] == "GLOT"}
    for choice in by_stage["choose"]:
        fit = next(row for row in by_stage["fit"] if row["artifact"] == choice["summary"]["fit"])
        score = scores[of(choice)]
        assert choice["candidate"] == score["candidate"] == fit["candidate"]
        assert choice["test"] == score["test"] == fit["test"]


def test_a_wide_terminal_has_a_table_and_a_narrow_one_loses_nothing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = cli.json("ls")["artifacts"]
    for width in (200, 50):
        monkeypatch.setattr(console, "width", width)
        said = cli("ls")
        assert ("stage method task seed dev test candidate id" in said) == (width == 200)
        for row in rows:
            assert row["artifact"].partition("/")[2][:12] in said
        points = [row["candidate"] for row in rows if row["candidate"] is not None]
        assert said.count("layer hidden/") == sum(p.startswith("layer hidden/") for p in points) > 0
        assert "…" not in said


def test_columns_of_wide_letters_stay_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows("t", ("name", "test", "id"), [("雪", "1.0", "a"), ("ice\x1b", "100.0", "b")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == ["雪         1.0  a", "ice\\x1b  100.0  b"]


def test_ls_by_experiment_stage_and_latest_run(cli: Cli) -> None:
    every = {row["artifact"] for row in cli.json("ls")["artifacts"]}
    latest = {row["artifact"] for row in cli.json("ls", "--latest")["artifacts"]}
    assert latest == set(find_run(cli.home, "tiny@2").refs)
    assert latest < every
    assert {r["artifact"] for r in cli.json("ls", "--experiment", "tiny")["artifacts"]} == every
    fits = cli.json("ls", "--stage", "fit", "--latest", "--experiment", "tiny")
    assert {row["artifact"] for row in fits["artifacts"]} == {
        ref for ref in latest if ref.startswith("fit/")
    }
    assert fits["stores"] == []
    assert "there are tiny" in cli("ls", "--experiment", "tony", code=2)
    assert "there are choose, control, corpus," in cli("ls", "--stage", "fits", code=2)


def test_ls_names_what_cannot_be_read(cli: Cli) -> None:
    first = cli.json("ls")["artifacts"][0]["artifact"]
    manifest = cli.home / "artifacts" / first / "artifact.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"seconds": ', '"seconds": 1'))
    listing = cli.json("ls")
    assert listing["damaged"] == [first]
    assert first not in {row["artifact"] for row in listing["artifacts"]}
    assert "1 more cannot be read" in cli("ls")


def test_ls_loads_nothing_that_takes_long(twice: Path) -> None:
    code = (
        "import sys\n"
        "from permafrost.flows.cli import app\n"
        f"sys.argv = ['permafrost', 'ls', '--home', {str(twice)!r}]\n"
        "try:\n    app.main()\nexcept SystemExit:\n    pass\n"
        "print('loaded', *(m for m in ('torch', 'transformers', 'prefect', 'pandas', 'scipy', "
        "'zarr', 'pyarrow.compute', 'matplotlib', 'sklearn') if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "GLOT" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded"


def test_show_begins_with_a_summary_and_has_code_only_on_request(cli: Cli) -> None:
    row = next(
        row for row in cli.json("ls", "--stage", "score")["artifacts"] if of(row)[0] == "GLOT"
    )
    said = cli("show", row["artifact"])
    key = row["artifact"].partition("/")[2]
    assert said.startswith(f"score {key} method GLOT task {of(row)[1]}")
    assert f"test {100 * row['test']:.1f} (accuracy × 100)" in said
    assert f"chosen {row['candidate']}" in said
    assert f"({of(row)[1]})" in said, "the corpus is told by its task"
    assert "by the run tiny@1" in said
    assert "used by tiny@1" in said
    manifest = ArtifactStore(cli.home).manifest(ArtifactStore(cli.home).find(key))
    name, digest = next(iter(manifest.spec.code.items()))
    assert digest not in said
    assert f"{len(manifest.spec.code)} definitions; --code" in said
    assert f'"{name}": "{digest}"' in cli("show", key, "--code")
    whole = cli.json("show", key)
    assert whole["spec"]["code"] == manifest.spec.code
    assert whole["about"]["runs"][0] == "tiny@1"
    second = find_run(cli.home, "tiny@2").refs
    new = [ref for ref in second if ref not in find_run(cli.home, "tiny@1").refs]
    assert {cli.json("show", ref)["about"]["made_by"] for ref in new[:2]} == {"tiny@2"}
    store = cli.json("ls")["stores"][0]["store_id"]
    assert "used by tiny@1, tiny@2" in cli("show", store[:10])


def test_runs_lists_every_run_with_overrides_times_and_scores(cli: Cli) -> None:
    first, second = cli.json("runs")["runs"]
    assert (first["run"], second["run"]) == ("tiny@1", "tiny@2")
    assert (first["overrides"], second["overrides"]) == ([], list(SECOND))
    assert first["config"]["methods"]["GLOT"]["head"]["tau"] == 0.3
    assert second["config"]["methods"]["mean"]["optim"]["lr"] == 0.02
    assert sum(first["ended"]["computed"].values()) == 41
    assert second["ended"]["computed"] == {"fit": 2, "score": 2, "report": 1}
    assert second["ended"]["seconds"] > 0
    assert second["state"] == "done"
    found = ArtifactStore(cli.home)
    corpora = {
        t: found.manifest(found.find(ref)).summary["task"] for t, ref in second["corpora"].items()
    }
    assert corpora == {t: t for t in ("ratio 0.2", "ratio 0.5")}
    rows = second["ended"]["results"]
    assert {(r["method"], r["task"], r["seed"]) for r in rows} == {
        (m, t, 0) for m in ("mean", "GLOT", "shuffled", "length", "words") for t in corpora
    }
    by_key = {row["artifact"]: row for row in cli.json("ls")["artifacts"]}
    assert all(by_key[r["key"]]["test"] == r["test"] for r in rows)
    said = cli("runs", "tiny")
    assert "--set methods.mean.optim.lr=0.02 --set seeds=[0]" in said
    assert "tiny@2 done, " in said
    test = next(r["test"] for r in rows if (r["method"], r["task"]) == ("GLOT", "ratio 0.2"))
    assert f"ratio 0.2, GLOT: accuracy × 100 test {100 * test:.1f}" in said
    assert "GLOT" not in cli("runs"), "scores are for one experiment"
    assert "there are tiny" in cli("runs", "tony", code=2)
    shown = cli("show", "tiny@2")
    assert "corpus of ratio 0.2: corpus/" in shown
    assert '"lr": 0.02' in shown
    assert "it has @1 to @2" in cli("show", "tiny@3", code=2)


def test_compare_two_runs_by_number(cli: Cli) -> None:
    found = cli.json("compare", "tiny@1", "tiny@2")
    assert {c["basis"] for c in found["changes"]} == {"examples"}
    assert [(s["field"], s["a"], s["b"]) for s in found["settings"]] == [
        ("methods.mean.optim.lr", "0.01", "0.02"),
        ("seeds", "[0, 1]", "[0]"),
    ]
    assert "methods.mean.optim.lr: 0.01 in A, 0.02 in B" in cli("compare", "tiny@1", "tiny@2")
    assert "it has @1 to @2" in cli("compare", "tiny@1", "tiny@12", code=2)
    before = {(c["method"], c["task"]): c["a"] for c in found["changes"]}
    drops = cli.json("gc")["drops"]
    gone = {d["path"].removeprefix("artifacts/") for d in drops}
    left = cli.json("compare", "tiny@1", "tiny@2")
    assert {(c["method"], c["task"]): c["a"] for c in left["changes"]} == before
    assert {c["basis"] for c in left["changes"] if c["method"] == "mean"} == {"none"}
    ran = find_run(cli.home, "tiny@1").ended
    assert ran is not None
    n_gone = sum(score.key in gone for score in ran.results)
    assert n_gone > 0
    (note,) = [note for note in left["notes"] if note.startswith("tiny@1")]
    assert f"{n_gone} of the {len(ran.results)} artifacts with its results are gone" in note
    assert note in cli("compare", "tiny@1", "tiny@2")


def test_a_mapping_that_was_emptied_is_told_by_its_fields_alone() -> None:
    grid = {"methods": {"GLOT": {"grid": {"layer": ["hidden/1"]}, "lr": 1}}}
    none = {"methods": {"GLOT": {"grid": {}, "lr": 1}}}
    assert [str(change) for change in config_changes(grid, none)] == [
        'methods.GLOT.grid.layer: ["hidden/1"] in A, absent in B'
    ]


def test_who_may_read_a_home_s_folders_may_read_its_files(twice: Path) -> None:
    files = [path for path in (twice / "artifacts").rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    for path in files:
        allowed = path.parent.stat().st_mode & 0o444
        assert path.stat().st_mode & 0o444 == allowed, path


def test_a_home_of_an_earlier_version_is_told_by_its_reports(cli: Cli) -> None:
    before = {r["artifact"]: r for r in cli.json("ls", "--latest")["artifacts"]}
    shutil.rmtree(history_folder(cli.home, "tiny"))
    after = {r["artifact"]: r for r in cli.json("ls", "--latest")["artifacts"]}
    assert after.keys() == before.keys()
    for name, row in after.items():
        told = ("of", "dev", "test") if row["artifact"].startswith("control/") else tuple(row)
        assert {k: row[k] for k in told} == {k: before[name][k] for k in told}
    assert "recorded by an earlier version" in cli("runs")
    found = cli.json("compare", "tiny@1", "tiny@1")
    assert {c["basis"] for c in found["changes"]} == {"examples"}
    assert found["settings"] is None


def test_gc_says_by_run_what_it_drops_and_keeps_pinned_runs(cli: Cli) -> None:
    latest = set(find_run(cli.home, "tiny@2").refs)
    dry = cli("gc", "--dry-run")
    drops = cli.json("gc", "--dry-run")["drops"]
    assert {d["path"].removeprefix("artifacts/") for d in drops} == {
        ref for ref in find_run(cli.home, "tiny@1").refs if ref not in latest
    }
    assert {d["run"] for d in drops} == {"tiny@1"}
    for drop in drops:
        files = [p for p in (cli.home / drop["path"]).rglob("*") if p.is_file()]
        assert drop["bytes"] == sum(p.stat().st_blocks * 512 for p in files)
        assert f"{drop['what']} {drop['path']}" in dry
    assert any(
        d["what"].startswith("fit · GLOT · ratio 0.2 · seed 1 · layer hidden/") for d in drops
    )
    assert f"tiny@1: {len(drops)} (" in dry
    assert "gc keeps its 41 artifacts" in cli("pin", "tiny@1")
    assert ", pinned" in cli("runs")
    assert cli.json("gc")["drops"] == []
    assert "no longer pinned" in cli("unpin", "tiny@1")
    for_real = cli("gc")
    assert for_real.replace("removed", "would remove") == dry
    assert "are gone, such as" in cli("pin", "tiny@1", code=2)


def test_a_damaged_record_is_named_by_runs_and_verify_and_stops_gc(cli: Cli) -> None:
    flip(half_path(cli.home, "tiny", 2, "begun"), 40)
    for said in (cli("runs"), cli("verify", code=1), cli("gc", code=1)):
        assert "000002.begun.json" in said
    assert "tiny@1 done" in cli("runs")
    assert [run["run"] for run in cli.json("runs")["runs"]] == ["tiny@1"]


class Broken:
    """An engine in which nothing works."""

    name, n_workers = "broken", 1

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def threads_of(self, node: Node, context: object) -> int:
        return 1

    def run(self, graph: Graph, context: object, display: Display) -> dict[str, Outcome]:
        if self.error is not None:
            raise self.error
        first, *others = graph
        failed = Outcome(first, "failed", CorruptDataError("no such luck\nsecond line"))
        return {
            first.id: failed,
            **{node.id: Outcome(node, "skipped", because=first) for node in others},
        }


def test_runs_that_fail_or_are_stopped_leave_a_record(
    finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from permafrost.flows.running import run_graph

    looked = look(finished_home.parent / "tiny.yaml", tmp_path / "home")
    run = partial(run_graph, looked.nodes, looked.context, console=Terminal(quiet=True))
    for error, raised in (
        (None, CorruptDataError),
        (Stopped(), Stopped),
        (ValueError("a fault"), ValueError),
    ):
        with pytest.raises(raised):
            run(engine=Broken(error), overrides=("seeds=[0, 1]",))
    with monkeypatch.context() as signalled:
        signalled.setattr(Stop, "asked", True)
        with pytest.raises(ValueError, match="because"):
            run(engine=Broken(ValueError("because of it")))
    history = read_history(tmp_path / "home", "tiny")
    assert history.problems == ()
    ended = [one.ended for one in history.runs]
    assert all(one is not None for one in ended)
    told = [(one.outcome, one.error) for one in ended if one is not None]
    assert told[:3] == [("failed", "no such luck"), ("stopped", None), ("failed", "a fault")]
    assert told[3:] == [("stopped", None)], "what fails after a signal fails because of it"
    assert ended[0] is not None
    assert ended[0].failed == {"corpus": 1}
    assert sum(ended[0].skipped.values()) == 40
    assert not run_path(tmp_path / "home", "tiny").exists(), "no run is complete"
