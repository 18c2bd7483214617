"""Run the small experiments of the papers, and write what came of the papers' claims.

    python -m benchmarks.papers [--only glot/table2 va] [--home .permafrost-papers] [--set FIELD=VALUE ...]

Every file of experiments/papers/*/ is run, one after the other, in one home, so that files that share fits
make them once; those of the papers' own sizes (experiments/papers/*/paper/) are not. A file that was stopped
goes on where it was, one that is done takes seconds. One that fails is noted, and the next is run. Data and
models are those of the files, so PERMAFROST_DATA and PERMAFROST_MODELS have to be set. What --set changes
in the files, as for `permafrost run`, is kept and written with their outcomes.

Some files are run with other backbones too (`glot/table7 on mixed6m-gqa`), of which `permafrost across` draws
the papers' figures over backbones: `--only glot/figure3` makes those runs and the figure, in the folder
`figures` of the home.

What came of each is kept in docs/papers/outcomes.json, with its scores, the differences behind its claims and
digests of its rows and settings and of what its claims test, and written to docs/papers/outcomes.md, which
names what has changed in the files since; of files that are not run this time, or fail, it stays what it was.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.paper_digests import FileDigests, digest_of_rows, digests_of_claims, with_digests
from permafrost.flows.experiment_files.yaml_reader import read_yaml
from permafrost.stages.report.entries import DASH, p_text
from permafrost.stages.report.markup import literal
from permafrost.storage.keys import digest

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments" / "papers"
OUTCOMES = ROOT / "docs" / "papers" / "outcomes.json"
PROGRAM = [sys.executable, "-c", "from permafrost.flows.cli import main; main()"]
SIDES = ("higher", "lower")
OTHER_BACKBONES = {
    "glot/table1": ("mixed6m-gqa", "stories260k-gqa"),
    "glot/table7": ("mixed6m-gqa", "stories260k-gqa"),
    "gt2vec/figure3a": ("stories260k-gqa",),
}
"""Folders of PERMAFROST_MODELS that files are run with besides their own backbone."""


@dataclass(frozen=True)
class AcrossBackbones:
    """A figure over backbones: what `permafrost across` makes of the runs of a file."""

    file: str
    method: str
    """Whose place among the rows is said."""
    rows: str
    groups: tuple[str, ...] = ()
    """Whose mean standard scores are drawn; scores by task without any."""


_TABLE_1 = ("single sentences=CoLA;SST-2", "similarity=STS-B;MRPC;QQP", "inference=MNLI;QNLI;RTE")
FIGURES = {
    "glot/figure3": AcrossBackbones(
        "glot/table7", "GLOT", "first token / last token;mean;max;scorer;GLOT"
    ),
    "glot/figure4": AcrossBackbones(
        "glot/table1", "GLOT", "first token / last token;mean;max;scorer;GLOT", _TABLE_1
    ),
}
HEAD = """# What came of the papers' claims

Written by `make papers`, which runs every small experiment of the papers; do not edit. No score here is one
of a paper: backbones and data are others. Confirmed and contrary are significant at 0.05 by the report's
paired bootstrap, or over tasks by Student's paired t, not corrected for the number of comparisons; what the
outcomes mean is in
[the report's page](../report.md#the-page-from-the-top); that scores are about the same is undecided where
runs before 2026-11-28 have "within noise". The differences from each paper are in its own page.

"Rows or settings changed since" the run: the backbone, recipes, tasks, methods or other settings of the file
are others now, and a new run may come to something else. Claims that were "added later" were not in the file
when it was run; those that were "withdrawn later", or put in other words, are no longer in it. Those that
are "tested otherwise now" have other rows, tasks or settings of the test than in the run. Scores and the
differences behind claims are in `docs/papers/outcomes.json`, of runs since 2026-11-27.
"""


def main() -> None:
    """Parse the flags, run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", help="a paper, as in glot, or a file, as in glot/table2"
    )
    parser.add_argument("--home", default=".permafrost-papers")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    args = parser.parse_args()
    found = files(EXPERIMENTS)
    claims = claims_in(found)
    papers = dict.fromkeys(name.partition("/")[0] for name in found)
    only = args.only or [*papers]
    if unknown := [name for name in only if name not in claims and name not in papers]:
        sys.exit(f"there is no experiment {', '.join(unknown)}; there are {', '.join(claims)}")
    chosen = [n for n in claims if {n, n.partition("/")[0]} & {*only, *_parts_of(only)}]
    outcomes = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    for number, name in enumerate(chosen, start=1):
        print(f"{number} of {len(chosen)}: {name}", file=sys.stderr)
        if name in FIGURES:
            ran = {run: one.get("digest") for run, one in outcomes.items()}
            came = drawn(name, found, args.home, _digest_of_figure(name, ran))
        else:
            file, _, model = name.partition(_ON)
            came = came_of(found[file], args.home, [*args.set, *_with(found[file], model)])
        # What came of an earlier run still holds.
        outcomes[name] = outcomes.get(name, {}) | came if "failed" in came else came
        outcomes = {known: outcomes[known] for known in claims if known in outcomes}
        OUTCOMES.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False) + "\n")
        OUTCOMES.with_suffix(".md").write_text(page(outcomes, claims, digests_now(found, outcomes)))
    if failed := [name for name in chosen if "failed" in outcomes[name]]:
        sys.exit(f"failed: {', '.join(failed)}")


def files(folder: Path) -> dict[str, Path]:
    """The small experiments by paper and name: `glot/table2`."""
    return {f"{path.parent.name}/{path.stem}": path for path in sorted(folder.glob("*/*.yaml"))}


_ON = " on "


def claims_in(found: Mapping[str, Path]) -> dict[str, list[str]]:
    """What each run claims, in words: of every file, of those with other backbones, and, with no claim, of
    the figures over these."""
    said: dict[str, list[str]] = {}
    for name, path in found.items():
        said[name] = [c["says"] for c in _document(path)["report"].get("claims", [])]
        said |= {f"{name}{_ON}{model}": said[name] for model in OTHER_BACKBONES.get(name, ())}
    return said | {name: [] for name, figure in FIGURES.items() if figure.file in found}


def digests_now(
    found: Mapping[str, Path], outcomes: Mapping[str, Mapping[str, Any]]
) -> dict[str, FileDigests]:
    """By run, the digests that it would have if it were run again with the same fields changed."""
    now: dict[str, FileDigests] = {}
    for name, outcome in outcomes.items():
        if name not in FIGURES:
            run = found[name.partition(_ON)[0]], outcome.get("set", [])
            now[name] = FileDigests(digest_of_rows(*run), digests_of_claims(*run))
    rows = {name: digests.rows for name, digests in now.items()}
    drawn_now = {name: _digest_of_figure(name, rows) for name in FIGURES if name in outcomes}
    return now | {name: FileDigests(of_runs) for name, of_runs in drawn_now.items()}


def _digest_of_figure(name: str, digests: Mapping[str, str | None]) -> str:
    figure = FIGURES[name]
    runs = [digests.get(run) for run in _runs_of(figure)]
    return digest([figure.method, figure.rows, figure.groups, runs])


def _runs_of(figure: AcrossBackbones) -> list[str]:
    """Its file as it is, and with other backbones."""
    return [figure.file, *(f"{figure.file}{_ON}{m}" for m in OTHER_BACKBONES[figure.file])]


def _document(path: Path) -> dict[str, Any]:
    return read_yaml(path.read_text(), str(path))


def _parts_of(only: Sequence[str]) -> Iterator[str]:
    """The runs that the figures that were asked for are made of."""
    for name in {*only} & {*FIGURES}:
        yield from _runs_of(FIGURES[name])


def _with(path: Path, model: str) -> list[str]:
    """The fields that run a file with another backbone, under a name of its own; none for its own one."""
    if not model:
        return []
    name = f"{_document(path)['name']}-{model}"
    return [f"name={name}", f"backbone.source=${{PERMAFROST_MODELS}}/{model}"]


def drawn(name: str, found: Mapping[str, Path], home: str, of_runs: str) -> dict[str, Any]:
    """A figure over the latest runs of a file with every backbone: where a method stands, and all scores.

    `of_runs` is the digest of what is drawn.
    """
    figure = FIGURES[name]
    own = str(_document(found[figure.file])["name"])
    runs = [own, *(f"{own}-{model}" for model in OTHER_BACKBONES[figure.file])]
    call = [*PROGRAM, "across", *runs, "--methods", figure.rows, "--home", home, "--json"]
    call += ["-o", str(Path(home, "figures", name))]
    call += [part for group in figure.groups for part in ("--group", group)]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    if done.returncode:
        return {"failed": f"exit code {done.returncode}, {today}"}
    return {
        "date": today,
        "digest": of_runs,
        **placed(figure, json.loads(done.stdout)),
        "claims": [],
    }


def placed(figure: AcrossBackbones, across: Mapping[str, Any]) -> dict[str, Any]:
    """In how many panels of how many backbones a method is highest, and the scores behind it."""
    lines: list[str] = []
    n_first = 0
    for one in across["backbones"]:
        panels: dict[str, dict[str, float]] = one["standard_scores"]
        if not figure.groups:
            panels = {
                task: {row: 100 * scores[task] for row, scores in one["test"].items()}
                for task in next(iter(one["test"].values()))
            }
        for panel, rows in panels.items():
            n_first += max(rows, key=lambda row: rows[row]) == figure.method
            scores = (f"{row} {value:.2f}" for row, value in rows.items())
            lines.append(" | ".join([one["backbone"], panel, *scores]))
    what = "mean standard score of a group of tasks" if figure.groups else "score on a task"
    finding = (
        f"{figure.method} has the highest {what} in {n_first} of {len(lines)} panels x backbones"
    )
    return {"finding": f"{finding}, untested.", "scores": lines}


def came_of(path: Path, home: str, changed: Sequence[str]) -> dict[str, Any]:
    """Run an experiment with these fields changed; its finding, scores and claims, or when it failed.

    Its own command line shows how far it is.
    """
    call = [*PROGRAM, "run", str(path), "--home", home, "--json"]
    call += [part for one in changed for part in ("--set", one)]
    # Of what is run, whatever the file becomes meanwhile.
    of_rows, of_claims = digest_of_rows(path, changed), digests_of_claims(path, changed)
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    when: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}"}
    if changed:
        when["set"] = list(changed)
    if done.returncode:
        return {"failed": f"exit code {done.returncode}, {when['date']}"}
    said = json.loads(done.stdout)
    summary = json.loads(Path(ROOT, said["report"]).with_name("summary.json").read_text())
    # A grid, for one, claims nothing.
    claims = with_digests(told_apart(summary.get("claims", [])), of_claims)
    return {
        **when,
        "digest": of_rows,
        "finding": summary["finding"],
        "scores": scores_of(summary),
        "claims": claims,
    }


def scores_of(summary: Mapping[str, Any]) -> list[str]:
    """A line for each row of the results, under one that names their columns."""
    means = [mean["heading"] for mean in summary["averages"]]
    rows = [
        [row["method"], *(c["text"] if c else DASH for c in (*row["cells"], *row["averages"]))]
        for row in summary["rows"]
    ]
    return [" | ".join(parts) for parts in (["", *summary["tasks"], *means], *rows)]


def told_apart(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What claims say, what came of them, and the differences behind it, in points; those that say the same
    have their rows too."""
    times = Counter(claim["says"] for claim in claims)
    told: list[dict[str, Any]] = []
    for claim in claims:
        one: dict[str, Any] = {name: claim[name] for name in ("says", "outcome")}
        if differences := [
            _difference(c) for c in claim["comparisons"] if c["difference"] is not None
        ]:
            one["differences"] = differences
        if times[claim["says"]] > 1:
            sides = [dict.fromkeys(c[side] for c in claim["comparisons"]) for side in SIDES]
            one["rows"] = " above ".join(", ".join(side) for side in sides)
        told.append(one)
    return told


def _difference(comparison: Mapping[str, Any]) -> str:
    c = comparison
    said = f"{c['on']}: {c['higher']} less {c['lower']} {100 * c['difference']:+.1f}"
    if c["interval"] is not None:
        low, high = (100 * end for end in c["interval"])
        said += f" ({low:+.1f} to {high:+.1f}, p {p_text(c['p'])})"
    return f"{said}, {c['outcome']}"


def page(
    outcomes: Mapping[str, Mapping[str, Any]],
    claims: Mapping[str, Sequence[str]],
    digests: Mapping[str, FileDigests],
) -> str:
    """Markdown: a section for each paper, an entry for each file, those that have not run included.

    Args:
        outcomes: what came of each file, by name.
        claims: what each file claims now; what its last run did not have is named as such, and so is what
            that run alone had.
        digests: of the rows and settings of each file now, and of what its claims test; it is said of runs
            and claims with others.
    """
    lines = [HEAD]
    for paper in dict.fromkeys(name.partition("/")[0] for name in claims):
        lines.append(f"\n## {paper}\n\n| file | outcome |\n|---|---|\n")
        of_paper = [name for name in claims if name.startswith(f"{paper}/")]
        lines += [
            f"| {_label(n)} | {_told(outcomes.get(n), claims[n], digests.get(n))} |\n"
            for n in of_paper
        ]
    return "".join(lines)


def _label(name: str) -> str:
    if name in FIGURES:
        return f"`{name}`, over the backbones of `{FIGURES[name].file}.yaml`"
    file, on, model = name.partition(_ON)
    return f"`{file}.yaml`{on}{model}"


def _said(claim: Mapping[str, str]) -> str:
    rows = claim.get("rows")
    return literal(claim["says"] if rows is None else f"{claim['says']} ({rows})")


def _told(
    outcome: Mapping[str, Any] | None, claimed: Sequence[str], now: FileDigests | None
) -> str:
    now = now or FileDigests(None)
    if outcome is None:
        return "not run"
    failed = f"failed ({outcome['failed']})" if "failed" in outcome else None
    if "finding" not in outcome:
        return f"{failed}"
    when = ", ".join(
        [
            outcome["date"],
            *("with `" + one.replace("|", r"\|") + "`" for one in outcome.get("set", [])),
            *(["rows or settings changed since"] if outcome.get("digest") != now.rows else []),
        ]
    )
    claims = [
        f"{_said(claim)}: **{claim['outcome']}**{_since(claim, claimed, now)}"
        for claim in outcome["claims"]
    ]
    known = {claim["says"] for claim in outcome["claims"]}
    claims += [f"{literal(says)}: not run, added later" for says in claimed if says not in known]
    again = [] if failed is None else [f"Run again, it {failed}"]
    return "<br>".join([f"{literal(outcome['finding'])} ({when})", *claims, *again])


def _since(claim: Mapping[str, str], claimed: Sequence[str], now: FileDigests) -> str:
    """What has become of a claim since the run; of one without a digest, only whether it is still there."""
    says = claim["says"]
    if says not in claimed:
        return ", withdrawn later"
    is_known = "digest" in claim and says in now.claims
    is_same = not is_known or claim["digest"] in now.claims[says]
    return "" if is_same else ", tested otherwise now, not run since"


if __name__ == "__main__":
    main()
