"""The page of the papers' outcomes: what ran, what failed, and what has not run."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import papers
from benchmarks.paper_digests import with_digests
from permafrost.flows.experiment_files.yaml_reader import read_yaml

SAID = {
    "finding": "a | b scores highest.",
    "claims": [{"says": "a_b > c", "outcome": "contrary", "comparisons": []}],
    "tasks": ["RTE", "CoLA"],
    "averages": [{"heading": "mean"}],
    "rows": [{"method": "a", "cells": [{"text": "1.0"}, None], "averages": [{"text": "1.0"}]}],
}


ACROSS = {
    "backbones": [
        {
            "backbone": backbone,
            "test": {"mean": {"t1": 0.5, "t2": 0.6}, "GLOT": {"t1": glot, "t2": 0.7}},
            "standard_scores": {"all": {"mean": 0.1, "GLOT": glot}},
        }
        for backbone, glot in (("a", 0.4), ("b", 0.8))
    ]
}
"""GLOT is highest in three of four cells, and by standard scores with both backbones."""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two papers with three files; `bad` fails, `other` claims nothing. The files that were run."""
    for name in ("glot/good", "glot/bad", "va/other", "va/paper/large"):
        path = tmp_path / "experiments" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        claims = "{claims: [{says: a_b > c}]}" if "good" in name else "{}"
        path.write_text(f"name: {path.stem}-run\nreport: {claims}")
    called: list[str] = []

    def run(call: list[str], **_: object) -> SimpleNamespace:
        if "across" in call:
            return SimpleNamespace(returncode=0, stdout=json.dumps(ACROSS))
        path = Path(call[call.index("run") + 1])
        called.append(path.stem)
        summary = {**SAID, "finding": "b.", "claims": []} if path.stem == "other" else SAID
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
    assert re.fullmatch(r"\| `glot/bad.yaml` \| failed \(exit code 2, \S+\) \|", rows[0])
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


def test_a_failure_leaves_what_came_of_an_earlier_run(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without PERMAFROST_DATA: the outcome still holds, and is not lost."""
    digest = papers.digest_of_rows(tmp_path / "experiments" / "glot" / "bad.yaml", [])
    earlier = {"date": "then", "digest": digest, "finding": "It was good.", "claims": []}
    (tmp_path / "outcomes.json").write_text(json.dumps({"glot/bad": earlier}))
    monkeypatch.setattr("sys.argv", ["papers", "--only", "glot"])
    with pytest.raises(SystemExit, match="failed: glot/bad"):
        papers.main()
    kept = json.loads((tmp_path / "outcomes.json").read_text())["glot/bad"]
    assert {name: kept[name] for name in earlier} == earlier
    page = (tmp_path / "outcomes.md").read_text()
    wanted = (
        r"`glot/bad.yaml` \| It was good. \(then\)<br>Run again, it failed \(exit code 2, \S+\) \|"
    )
    assert re.search(wanted, page)


def test_scores_and_differences_are_kept(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["papers", "--only", "glot/good"])
    papers.main()
    kept = json.loads((tmp_path / "outcomes.json").read_text())["glot/good"]
    assert kept["scores"] == [" | RTE | CoLA | mean", "a | 1.0 | – | 1.0"]
    tested = {
        "difference": 0.0214,
        "interval": [-0.01, 0.0528],
        "p": 0.0002,
        "outcome": "within noise",
    }
    untested = {"difference": -0.5, "interval": None, "p": None, "outcome": "not tested"}
    missing = {"difference": None, "interval": None, "p": None, "outcome": "not run"}
    comparisons = [
        {"on": "RTE", "higher": "a", "lower": lower, **said}
        for lower, said in (("b", tested), ("c", untested), ("d", missing))
    ]
    (told,) = papers.told_apart([{"says": "s", "outcome": "o", "comparisons": comparisons}])
    assert told["differences"] == [
        "RTE: a less b +2.1 (-1.0 to +5.3, p <0.001), within noise",
        "RTE: a less c -50.0, not tested",
    ]


def test_a_figure_over_backbones_is_made_of_the_runs_with_each(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "OTHER_BACKBONES", {"glot/good": ("small", "large")})
    figure = papers.AcrossBackbones("glot/good", "GLOT", "mean;GLOT")
    monkeypatch.setattr(papers, "FIGURES", {"glot/figure": figure})
    calls: list[list[str]] = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda call, **how: (calls.append(call), run(call, **how))[1]
    )
    monkeypatch.setattr("sys.argv", ["papers", "--only", "glot/figure", "--home", "h"])
    papers.main()
    assert ran == ["good"] * 3, "with its own backbone and with two others; no other file"
    assert calls[1][-4:] == [
        *("--set", "name=good-run-small"),
        *("--set", "backbone.source=${PERMAFROST_MODELS}/small"),
    ]
    runs = ["good-run", "good-run-small", "good-run-large"]
    assert calls[3][calls[3].index("across") + 1 :] == [
        *(*runs, "--methods", "mean;GLOT", "--home", "h", "--json"),
        *("-o", str(Path("h", "figures", "glot", "figure"))),
    ]
    kept = json.loads((tmp_path / "outcomes.json").read_text())
    assert list(kept) == [
        *("glot/good", "glot/good on small", "glot/good on large", "glot/figure"),
    ]
    assert kept["glot/figure"]["finding"].startswith(
        "GLOT has the highest score on a task in 3 of 4 "
    )
    assert kept["glot/figure"]["scores"][0] == "a | t1 | mean 50.00 | GLOT 40.00"
    page = (tmp_path / "outcomes.md").read_text()
    assert "| `glot/good.yaml` on small | a \\| b scores highest." in page
    assert "| `glot/figure`, over the backbones of `glot/good.yaml` | GLOT has the highest" in page
    grouped = papers.AcrossBackbones("glot/good", "GLOT", "mean;GLOT", ("all=t1;t2",))
    assert "group of tasks in 2 of 2 " in papers.placed(grouped, ACROSS)["finding"]


def test_figures_over_backbones_have_rows_and_tasks_of_their_files() -> None:
    found = papers.files(papers.EXPERIMENTS)
    for name, figure in papers.FIGURES.items():
        assert name not in found
        document = read_yaml(found[figure.file].read_text(), figure.file)
        rows = {part.strip() for row in figure.rows.split(";") for part in row.split("/")}
        assert rows <= {*document["methods"]}, name
        assert figure.method in rows
        tasks = {t for g in figure.groups for t in g.partition("=")[2].replace("+", ";").split(";")}
        assert tasks <= {*document["tasks"]}, name


def test_a_claim_that_was_added_since_the_last_run_is_named() -> None:
    outcome = {
        "date": "now",
        "finding": "f",
        "claims": [{"says": "old", "outcome": "confirmed"}],
    }
    page = papers.page({"va/x": outcome}, {"va/x": ["old", "new"], "va/y": ["other"]}, {})
    assert "| `va/x.yaml` | f (now)<br>old: **confirmed**<br>new: not run, added later |" in page
    assert "| `va/y.yaml` | not run |" in page


def test_a_claim_that_was_withdrawn_since_the_last_run_is_named() -> None:
    claims = [{"says": says, "outcome": "contrary"} for says in ("kept", "gone")]
    outcome = {"date": "now", "finding": "f", "claims": claims}
    page = papers.page({"va/x": outcome}, {"va/x": ["kept"]}, {})
    assert "<br>kept: **contrary**<br>gone: **contrary**, withdrawn later |" in page


def test_rows_that_changed_since_the_last_run_are_named(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "experiments" / "va" / "other.yaml"

    def written() -> str:
        kept = json.loads((tmp_path / "outcomes.json").read_text())
        found = papers.files(papers.EXPERIMENTS)
        page = papers.page(kept, papers.claims_in(found), papers.digests_now(found, kept))
        return next(line for line in page.splitlines() if line.startswith("| `va/other.yaml` "))

    monkeypatch.setattr("sys.argv", ["papers", "--only", "va", "--set", "x-m.lr=2"])
    file.write_text(
        "x-m: &m {lr: 1, kind: head}\nmethods: {a: *m}\nseeds: [0]\nreport: {title: a}\n"
    )
    papers.main()
    assert "changed" not in written()
    file.write_text(
        "# a note\nreport: {title: b, description: c}\nseeds:\n  - 0\n"
        "x-m: &m {kind: head, lr: 1.0}\nmethods: {a: {<<: *m}}\nname: d\n"
    )
    assert "changed" not in written(), "formatting, comments, order, names and words are no rows"
    for change in (
        "x-m: &m {kind: head, lr: 1}\nmethods: {a: *m, b: *m}\nseeds: [0]\nreport: {}",
        "x-m: &m {kind: head, lr: 1}\nmethods: {a: *m}\nseeds: [0, 1]\nreport: {}",
        "x-m: &m {kind: head, lr: 1}\nmethods: {a: *m}\nseeds: [0]\nreport: {averages: none}",
        "methods: {a: {kind: head, lr: 2}}\nseeds: [0]\nreport: {}",  # no x-m to set
    ):
        file.write_text(change)
        assert re.search(
            r"b\. \(\S+, with `x-m\.lr=2`, rows or settings changed since\) \|", written()
        ), change


def test_a_claim_that_tests_something_else_since_the_last_run_is_named(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "experiments" / "glot" / "good.yaml"

    def written(claims: str) -> str:
        file.write_text(f"name: good-run\nreport: {{claims: [{claims}]}}")
        kept = json.loads((tmp_path / "outcomes.json").read_text())
        found = papers.files(papers.EXPERIMENTS)
        page = papers.page(kept, papers.claims_in(found), papers.digests_now(found, kept))
        return next(line for line in page.splitlines() if line.startswith("| `glot/good.yaml` "))

    monkeypatch.setattr("sys.argv", ["papers", "--only", "glot/good"])
    file.write_text("name: good-run\nreport: {claims: [{says: a_b > c, higher: a_b, lower: [c]}]}")
    papers.main()
    same = "{lower: [c], higher: a_b, says: a_b > c}"
    assert written(same).endswith("<br>a_b > c: **contrary** |"), "in another order"
    swapped = "{says: a_b > c, higher: c, lower: [a_b]}"
    mark = "<br>a_b > c: **contrary**, tested otherwise now, not run since |"
    assert written(swapped).endswith(mark)
    assert written(f"{swapped}, {same}").endswith("**contrary** |"), "one of two that say so"
    kept = json.loads((tmp_path / "outcomes.json").read_text())
    del kept["glot/good"]["claims"][0]["digest"]
    (tmp_path / "outcomes.json").write_text(json.dumps(kept))
    assert written(swapped).endswith("**contrary** |"), "not known of earlier runs"


def test_claims_that_say_the_same_have_their_own_digests() -> None:
    claims = [{"says": says} for says in ("a", "b", "a")]
    found = with_digests(claims, {"a": ["1", "2"], "b": ["3", "4"]})
    assert [one.get("digest") for one in found] == ["1", None, "2"], "which b is not known"


def test_a_figure_over_backbones_is_of_the_rows_of_its_file(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "OTHER_BACKBONES", {"glot/good": ("small",)})
    figure = papers.AcrossBackbones("glot/good", "GLOT", "mean;GLOT")
    monkeypatch.setattr(papers, "FIGURES", {"glot/figure": figure})
    monkeypatch.setattr("sys.argv", ["papers", "--only", "glot/figure", "--home", "h"])
    papers.main()
    assert "changed since)" not in (tmp_path / "outcomes.md").read_text()
    file = tmp_path / "experiments" / "glot" / "good.yaml"
    file.write_text(file.read_text() + "\nseeds: [0]")
    monkeypatch.setattr("sys.argv", ["papers", "--only", "glot/good", "--home", "h"])
    papers.main()
    page = (tmp_path / "outcomes.md").read_text()
    changed = [line for line in page.splitlines() if "changed since)" in line]
    assert [line.split(" | ")[0] for line in changed] == [
        "| `glot/good.yaml` on small",
        "| `glot/figure`, over the backbones of `glot/good.yaml`",
    ], "the file itself has run again"


def test_scores_are_kept_of_runs_since_the_day_that_the_pages_name() -> None:
    kept = json.loads(papers.OUTCOMES.read_text())
    since = min(one["date"] for one in kept.values() if "scores" in one)
    assert all(("scores" in one) == (one["date"] >= since) for one in kept.values())
    for page in (papers.HEAD, (papers.ROOT / "docs" / "papers.md").read_text()):
        assert f"of runs since {since}" in page.lower()


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
        pairs = [
            {"on": "x", "higher": higher, "lower": lower, "difference": None}
            for higher, lower in rows
        ]
        return {"says": says, "outcome": "contrary", "comparisons": pairs}

    told = papers.told_apart(
        [
            claim("last", ("a", "b"), ("a", "c"), ("a", "b")),
            claim("first"),
            claim("last", ("d", "b")),
        ]
    )
    assert [one.get("rows") for one in told] == ["a above b, c", None, "d above b"]
    outcome = {"date": "now", "finding": "f", "claims": told}
    page = papers.page({"va/x": outcome}, {"va/x": ["last", "first"]}, {})
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
    found = papers.files(papers.EXPERIMENTS)
    assert papers.OUTCOMES.with_suffix(".md").read_text() == papers.page(
        kept, papers.claims_in(found), papers.digests_now(found, kept)
    ), "write the page again: make papers ARGS='--only FILE'"
