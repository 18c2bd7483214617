"""`permafrost compare`: what it takes for a run, what it prints, and what it refuses."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.flows.comparison.comparing import read_side
from permafrost.flows.pipeline import run_serially
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import InputError
from tests.flows.run_records import finished, score
from tests.flows.test_cli import Cli
from tests.stages.report.test_latex import checked

METHODS = ("mean", "GLOT", "shuffled", "length", "words")
TASKS = ("ratio 0.2", "ratio 0.5")


@pytest.fixture
def cli(finished_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A home in which the tiny experiment has run."""
    return Cli(shutil.copytree(finished_home, tmp_path / "home"), capsys)


def report_of(home: Path) -> str:
    (ref,) = ArtifactStore(home).refs("report")
    return str(ref)


def written(path: Path, **columns: list[Any]) -> Path:
    """A results.parquet by itself; two seeds of one method unless said otherwise."""
    facts = {
        "method": ["m", "m"],
        "task": ["t", "t"],
        "seed": [0, 1],
        "role": ["method"] * 2,
        "metric": ["accuracy"] * 2,
        "test": [0.5, 0.6],
        "key": ["score/none"] * 2,
    }
    pq.write_table(pa.table(facts | columns), path)
    return path


def test_a_run_against_itself_changes_nothing(cli: Cli) -> None:
    key = report_of(cli.home)
    found = cli.json("compare", "tiny", key[:14])
    assert found["a"].startswith("tiny@1 (done, 2")
    assert found["b"] == key[:19]
    assert {(c["task"], c["method"]) for c in found["changes"]} == {
        (task, method) for task in TASKS for method in METHODS
    }
    for change in found["changes"]:
        assert (change["basis"], change["n_examples"]) == ("examples", 12)
        assert change["verdict"] == "within noise"
        assert (change["tested"]["p"], change["difference"]) == (1.0, 0.0)
    assert found["counts"] == {"better": 0, "worse": 0, "within noise": 10, "cannot tell": 0}
    assert found["n_tests"] == 10
    said = cli("compare", "tiny", key)
    assert "10 within noise. 10 tests at 0.05, not corrected" in said
    assert "GLOT │" in said


@pytest.mark.deep
def test_an_earlier_report_is_compared_with_the_latest_run(cli: Cli, experiment_file: Path) -> None:
    before = report_of(cli.home)
    run_serially(experiment_file, cli.home, ["methods.GLOT.optim.lr=0.5", "seeds=[0]"])
    found = cli.json("compare", before, "tiny")
    by_name = {(c["task"], c["method"]): c for c in found["changes"]}
    for task in TASKS:
        glot = by_name[task, "GLOT"]
        assert (glot["basis"], glot["n_seeds"]) == ("examples", [2, 1])
        assert glot["difference"] == pytest.approx(glot["b"] - glot["a"])
        assert glot["tested"]["low"] <= glot["tested"]["value"] <= glot["tested"]["high"]
        assert by_name[task, "length"]["tested"]["p"] == 1.0
    back = cli.json("compare", "tiny", before)
    assert [c["difference"] for c in back["changes"]] == pytest.approx(
        [-c["difference"] for c in found["changes"]]
    )


def test_a_file_elsewhere_finds_its_predictions_in_the_home(cli: Cli, tmp_path: Path) -> None:
    inside = cli.home / "artifacts" / report_of(cli.home) / "results.parquet"
    outside = shutil.copy(inside, tmp_path / "results.parquet")
    found = cli.json("compare", str(outside), "tiny")
    assert {c["basis"] for c in found["changes"]} == {"examples"}
    # Without the predictions only seeds are left; some controls have one.
    empty = Cli(tmp_path / "empty", cli._capsys)
    found = empty.json("compare", str(outside), str(outside))
    assert "examples" not in {c["basis"] for c in found["changes"]}
    assert {c["basis"] for c in found["changes"] if c["n_seeds"] == [1, 1]} == {"none"}
    assert any(note.startswith("Cannot tell") for note in found["notes"])
    # A file inside a home belongs to that home, whatever --home says.
    found = empty.json("compare", str(inside), str(inside.parent))
    assert {c["basis"] for c in found["changes"]} == {"examples"}
    found = empty.json("compare", str(inside), "tiny", "--home-b", str(cli.home))
    assert {c["basis"] for c in found["changes"]} == {"examples"}


def test_seeds_are_compared_where_there_are_no_predictions(cli: Cli, tmp_path: Path) -> None:
    a = written(tmp_path / "a.parquet", test=[0.50, 0.52])
    names = ["m", "m", "new"]
    b = written(
        tmp_path / "b.parquet",
        method=names,
        task=["t"] * 3,
        seed=[0, 1, 0],
        role=["method"] * 3,
        metric=["accuracy"] * 3,
        test=[0.80, 0.81, 0.9],
        key=["score/none"] * 3,
    )
    found = cli.json("compare", str(a), str(b))
    (change,) = found["changes"]
    assert (change["basis"], change["verdict"]) == ("seeds", "better")
    assert found["only_b"] == [{"task": "t", "method": "new"}]
    said = cli("compare", str(a), str(b))
    assert "1 better" in said
    assert "Welch's t-test" in said
    assert "Only in B: new on t." in said


def test_the_formats_say_the_same(cli: Cli) -> None:
    changes = cli.json("compare", "tiny", "tiny")["changes"]
    latex = cli("compare", "tiny", "tiny", "--format", "latex")
    # The helper joins lines: every row again on its own.
    rows = checked(
        latex.replace("booktabs} ", "booktabs}\n")
        .replace("\\\\ ", "\\\\\n")
        .replace("rule ", "rule\n")
    )
    assert len(rows) == 1 + len(changes)
    assert [row[1] for row in rows[1:6]] == [
        c["method"] + (" (control)" if c["role"] == "control" else "") for c in changes[:5]
    ]
    markdown = cli("compare", "tiny", "tiny", "--format", "markdown")
    assert markdown.startswith("| task | method | metric | A | B | B − A |")
    for change in changes:
        assert f"| {100 * change['a']:.1f} | {100 * change['b']:.1f} | 0.0 |" in markdown


def test_wrong_input_is_told_with_exit_code_2(cli: Cli, tmp_path: Path) -> None:
    fit = str(ArtifactStore(cli.home).refs("fit")[0])
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"text": ["x"]}), other)
    text = tmp_path / "notes.txt"
    text.write_text("no table")
    mcc = written(tmp_path / "mcc.parquet", metric=["mcc"] * 2)
    mixed = written(tmp_path / "mixed.parquet", metric=["mcc", "f1"])
    good = written(tmp_path / "good.parquet")
    cases = {
        "nothing": ("tiny", "(there are tiny)"),
        "abcdef": ("tiny", "'abcdef' is neither a file nor an experiment"),
        fit: ("tiny", "expected an artifact of stage report, or an experiment that ran under"),
        str(other): ("tiny", "not the results.parquet of a report"),
        str(text): ("tiny", "not the results.parquet of a report"),
        str(good): ("tiny", "no method on a task in common: A has m on t, B has"),
        str(mcc): (str(good), "m on t was scored by mcc in A and by accuracy in B"),
        str(mixed): (str(good), "m on t has the metrics f1, mcc in"),
    }
    for a, (b, says) in cases.items():
        said = cli("compare", a, b, code=2)
        assert says in said
        assert "Traceback" not in said
    assert "table" in cli("compare", "tiny", "tiny", "--format", "csv", code=2)


def test_a_damaged_report_is_not_read(cli: Cli) -> None:
    key = report_of(cli.home)
    path = cli.home / "artifacts" / key / "results.parquet"
    path.write_bytes(path.read_bytes()[:-3])
    assert "its manifest says" in cli("compare", key, key, code=1)
    # The scores of a run are recorded beside it.
    assert "10 within noise" in cli("compare", "tiny", "tiny")


def test_a_run_that_extracted_only_is_left_for_the_one_before(tmp_path: Path) -> None:
    report = f"report/{'0' * 32}"
    finished(tmp_path, refs=[report], results=[score(key=f"score/{'0' * 32}")])
    finished(tmp_path, refs=[report])
    side = read_side("mine", tmp_path)
    assert side.run is not None
    assert side.run.name == "mine@1"
    assert side.remarks[-1] == "mine@2 came after mine@1, and is not compared: it extracted only"
    with pytest.raises(
        InputError, match="mine@2 has no scores: it extracted only; run 'downstream'"
    ):
        read_side("mine@2", tmp_path)
