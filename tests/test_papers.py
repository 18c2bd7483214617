"""The page of the papers' outcomes: what ran, what failed, and what has not run."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import papers

SAID = {
    "finding": "a | b scores highest.",
    "claims": [{"says": "a_b > c", "outcome": "contrary", "comparisons": []}],
}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two papers with three files; `bad` fails, `other` claims nothing. The files that were run."""
    for name in ("glot/good", "glot/bad", "va/other", "va/paper/large"):
        path = tmp_path / "experiments" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    called: list[str] = []

    def run(call: list[str], **_: object) -> SimpleNamespace:
        path = Path(call[call.index("run") + 1])
        called.append(path.stem)
        summary = {"finding": "b."} if path.stem == "other" else SAID
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        said = json.dumps({"report": str(tmp_path / "report.html")})
        return SimpleNamespace(returncode=2 if path.stem == "bad" else 0, stdout=said)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(papers, "EXPERIMENTS", tmp_path / "experiments")
    monkeypatch.setattr(papers, "OUTCOMES", tmp_path / "outcomes.json")
    return called


def test_what_failed_is_noted_and_the_others_are_run(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["papers", "--only", "glot"])
    with pytest.raises(SystemExit, match="failed: glot/bad"):
        papers.main()
    assert ran == ["bad", "good"], "neither the other paper nor what is of a paper's own size"
    page = (tmp_path / "outcomes.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows[0].startswith("| `glot/bad.yaml` | failed (exit code 2, ")
    assert rows[1].startswith("| `glot/good.yaml` | a \\| b scores highest. (")
    assert rows[1].endswith("<br>a_b > c: **contrary** |")
    assert rows[2] == "| `va/other.yaml` | not run |"


def test_what_is_not_run_again_stays(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for only in ("glot/good", "va"):
        monkeypatch.setattr("sys.argv", ["papers", "--only", only])
        papers.main()
    assert ran == ["good", "other"]
    assert list(json.loads((tmp_path / "outcomes.json").read_text())) == ["glot/good", "va/other"]
    page = (tmp_path / "outcomes.md").read_text()
    assert page.count("scores highest") == 1
    assert re.search(r"^\| `va/other.yaml` \| b\. \(\S+\) \|$", page, re.MULTILINE)


def test_what_is_set_is_written_with_the_outcome(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda call, **how: (calls.append(call), run(call, **how))[1]
    )
    flags = ["--set", "seeds=[0]", "--set", "optim.lr=1"]
    monkeypatch.setattr("sys.argv", ["papers", "--only", "va", *flags])
    papers.main()
    assert calls[0][-4:] == flags
    assert json.loads((tmp_path / "outcomes.json").read_text())["va/other"]["set"] == flags[1::2]
    page = (tmp_path / "outcomes.md").read_text()
    assert re.search(r"\| b\. \(\S+, with `seeds=\[0\]`, with `optim\.lr=1`\) \|", page)


def test_claims_that_say_the_same_are_told_apart_by_their_rows() -> None:
    def claim(says: str, *rows: tuple[str, str]) -> dict[str, object]:
        pairs = [{"on": "x", "higher": higher, "lower": lower} for higher, lower in rows]
        return {"says": says, "outcome": "contrary", "comparisons": pairs}

    told = papers.told_apart(
        [
            claim("last", ("a", "b"), ("a", "c"), ("a", "b")),
            claim("first"),
            claim("last", ("d", "b")),
        ]
    )
    assert [one.get("rows") for one in told] == ["a above b, c", None, "d above b"]
    page = papers.page({"va/x": {"date": "now", "finding": "f", "claims": told}}, ["va/x"])
    assert "<br>last (a above b, c): **contrary**<br>first: **contrary**<br>last (d above" in page


def test_a_name_that_nothing_has_is_refused(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("glut", "glot/go"):
        monkeypatch.setattr("sys.argv", ["papers", "--only", "va", name])
        wanted = f"no experiment {name}; there are glot/bad, glot/good, va/other"
        with pytest.raises(SystemExit, match=wanted):
            papers.main()
    assert ran == []


def test_the_page_has_every_small_experiment_and_what_is_kept_of_it() -> None:
    kept = json.loads(papers.OUTCOMES.read_text())
    assert papers.OUTCOMES.with_suffix(".md").read_text() == papers.page(
        kept, list(papers.files(papers.EXPERIMENTS))
    ), "write the page again: make papers ARGS='--only FILE'"
