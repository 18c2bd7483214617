"""Runs of one experiment with several backbones, read for one table over all of them."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from permafrost.flows.comparison.comparing import Side, read_side
from permafrost.flows.comparison.one_experiment import (
    different_seeds,
    different_settings,
    require_same_tests,
)
from permafrost.stages.extraction.files import BackboneConfig, find_backbone
from permafrost.stages.extraction.parameters import count_parameters
from permafrost.stages.report.across import Across, BackboneScores
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

BY_KIND = " / "
"""Between the row of an encoder and that of a decoder, which are one row over several backbones; a row that
is the name of a method is that method alone."""

_Tests = tuple[dict[tuple[str, str], float], dict[str, str]]
"""Of a run: mean over seeds by row and task, and the metric of each task."""


def read_across(
    sources: Sequence[str], home: Path, methods: Sequence[str]
) -> tuple[Across, list[str]]:
    """Read runs and put them side by side; also sentences about what is missing, and about other seeds and
    settings.

    Args:
        sources: as for `read_side`, each a run with another backbone.
        home: where they are looked for.
        methods: rows to compare; every method that all runs have, controls left out, if there are none. A
            row `first token / last token` is the first one for encoders, the second one for decoders, unless
            it is the name of a method of any run.

    Raises:
        InputError: fewer than two runs, one without a recorded backbone, two with one backbone, a row that is
            named twice, no method or task that all of them have, a task with another metric or other test
            examples in one of them, or a row `first token / last token` of a backbone that is not here; see
            also `read_side`.
    """
    if len(sources) < 2:
        raise InputError(f"{len(sources)} run was named; a table over backbones needs two or more")
    sides = [read_side(source, home) for source in sources]
    names = names_of([_backbone(side) for side in sides])
    remarks = [remark for side in sides for remark in (*side.remarks, *_not_done(side))]
    facts = [_facts(side.config, name, remarks) for side, name in zip(sides, names, strict=True)]
    if twice := [row for row in methods if methods.count(row) > 1]:
        raise InputError(f"the row {quoted(twice[0])} is named twice; name every row once")
    there = [dict.fromkeys(s.method for s in side.methods if s.role == "method") for side in sides]
    rows = methods or _shared(there)
    if not methods:
        remarks += _left_out("Methods that not every run has", there, rows)
    of_any_run = {s.method for side in sides for s in side.methods}
    methods_of = [
        {r: r if r in of_any_run else _named(r, is_decoder, name) for r in rows}
        for (_, is_decoder), name in zip(facts, names, strict=True)
    ]
    found = [_tests(*of) for of in zip(sides, methods_of, names, strict=True)]
    tasks = _shared(
        [dict.fromkeys(t for t in one[1] if all((r, t) in one[0] for r in rows)) for one in found]
    )
    if not rows:
        raise InputError(
            f"the runs {', '.join(sources)} have no method in common; name methods that all of them have"
        )
    if not tasks:
        raise InputError(
            f"no task of the runs {', '.join(sources)} has all of the rows{_lacking(found, rows)}; name with "
            "--methods (in Python methods=) rows that are on the same tasks"
        )
    remarks += _left_out(
        "Tasks on which not every run has every row", [of for _, of in found], tasks
    )
    metrics = found[0][1]
    for (_, theirs), source in zip(found, sources, strict=True):
        for task in tasks:
            if theirs[task] != metrics[task]:
                raise InputError(
                    f"{source} has {theirs[task]} on {quoted(task)}, {sources[0]} has {metrics[task]}; name "
                    "runs of one experiment"
                )
    remarks += require_same_tests(sides, tasks, ArtifactStore(home))
    remarks += different_seeds(sides, methods_of, tasks)
    remarks += different_settings(sides, methods_of)
    runs = tuple(
        BackboneScores(name, n, tests)
        for name, (n, _), (tests, _) in zip(names, facts, found, strict=True)
    )
    return Across(runs, tuple(rows), tuple(tasks), metrics), remarks


def _not_done(side: Side) -> list[str]:
    if side.run is None or side.run.state == "done":
        return []
    return [f"{side.run.name} is not done ({side.run.state}): scores of it may be missing."]


def _lacking(found: Sequence[_Tests], rows: Sequence[str]) -> str:
    """For each task that all runs have, a row that is not on it in one of them."""
    lacks: list[str] = []
    for task in _shared([metrics for _, metrics in found]):
        row = next(row for row in rows if any((row, task) not in tests for tests, _ in found))
        lacks.append(f"{quoted(row)} is not on {task}")
    return f": {', '.join(lacks)}" if lacks else ", as they share none"


def _left_out(which: str, named: Sequence[Mapping[str, Any]], kept: Sequence[str]) -> list[str]:
    every = dict.fromkeys(name for names in named for name in names)
    others = [name for name in every if name not in kept]
    return [f"{which} are left out: {', '.join(others)}."] if others else []


def names_of(backbones: Sequence[tuple[str, str]]) -> list[str]:
    """What tells backbones apart: the last part of each source, with more of it where several end alike, and
    with the revision where all of it is the same.

    Raises:
        InputError: two are the same.
    """
    if twice := [one for one in backbones if backbones.count(one) > 1]:
        raise InputError(
            f"two of the runs have the backbone {quoted(twice[0][0])}; name one run for each backbone"
        )
    parts = [Path(source).parts for source, _ in backbones]
    names: list[str] = []
    for own, (source, revision) in zip(parts, backbones, strict=True):
        others = [other for other in parts if other != own]
        n = next(
            (n for n in range(1, len(own)) if all(o[-n:] != own[-n:] for o in others)), len(own)
        )
        is_shared = sum(one == source for one, _ in backbones) > 1
        names.append("/".join(own[-n:]) + (f"@{revision}" if is_shared else ""))
    return names


def _backbone(side: Side) -> tuple[str, str]:
    """Source and revision."""
    if side.config is None:
        raise InputError(
            f"{side.label} does not say which backbone it had; name a run such as mine@2, see 'permafrost "
            "runs'"
        )
    backbone = side.config["backbone"]
    return str(backbone["source"]), str(backbone.get("revision"))


def _facts(
    config: dict[str, Any] | None, name: str, remarks: list[str]
) -> tuple[int | None, bool | None]:
    """Number of parameters, and whether it is a decoder, as far as that is known; remarks say what is not."""
    assert config is not None, "its name was read"
    # Imported here: transformers takes a second.
    from permafrost.stages.extraction.backbone import read_sizes

    try:
        files = find_backbone(BackboneConfig.model_validate(config["backbone"]))
        is_decoder = read_sizes(files).is_decoder
    except InputError:
        remarks.append(
            f"{name} is not where its run found it, so its parameters are not known and it is in no figure."
        )
        return None, None
    try:
        return count_parameters(files.folder), is_decoder
    except InputError as error:
        remarks.append(f"The parameters of {name} are not known, so it is in no figure: {error}.")
        return None, is_decoder


def _named(row: str, is_decoder: bool | None, backbone: str) -> str:
    first, slash, second = (part.strip() for part in row.partition(BY_KIND))
    if not slash:
        return first
    if is_decoder is None:
        raise InputError(
            f"the row {quoted(row)} is the first for encoders and the second for decoders, and which of both "
            f"{backbone} is cannot be read, as it is not where its run found it; put it back, or name one row"
        )
    return second if is_decoder else first


def _tests(side: Side, methods: dict[str, str], backbone: str) -> _Tests:
    """The scores of these rows, by the methods that have them."""
    known = {s.method for s in side.methods}
    if missing := [name for name in methods.values() if name not in known]:
        raise InputError(
            f"{side.label}, with {backbone}, has no method {quoted(missing[0])}; there are "
            f"{', '.join(dict.fromkeys(s.method for s in side.methods))}{_meant(missing[0], known)}"
        )
    tests: dict[tuple[str, str], float] = {}
    metrics: dict[str, str] = {}
    for row, name in methods.items():
        for scored in side.methods:
            if scored.method != name:
                continue
            if metrics.setdefault(scored.task, scored.metric) != scored.metric:
                raise InputError(
                    f"{side.label} has both {metrics[scored.task]} and {scored.metric} on "
                    f"{quoted(scored.task)}; name methods with one metric (--methods)"
                )
            tests[row, scored.task] = fmean(scored.tests)
    return tests, metrics


def _meant(name: str, known: Collection[str]) -> str:
    """How two methods are named as one row, if they are around a slash of this name without its spaces."""
    parts = name.split("/")
    for i in range(1, len(parts)):
        one, other = ("/".join(of).strip() for of in (parts[:i], parts[i:]))
        row = f"{one}{BY_KIND}{other}"
        if one in known and other in known and row != name:
            return f"; two methods are one row with spaces around the slash: {quoted(row)}"
    return ""


def _shared(names: Sequence[dict[str, Any]]) -> list[str]:
    """Those that are in all, in the order of the first."""
    return [name for name in names[0] if all(name in others for others in names[1:])]
