"""What was chosen on dev: layer, hyper-parameters, epoch, by method and task."""

from collections.abc import Sequence
from dataclasses import dataclass

from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.chance import chance_rate
from permafrost.stages.report.entries import DASH, Entry, entry, mean_text
from permafrost.stages.report.markup import PlainTable

MOST_FIELDS = 6
"""With more fields than this, only those that differ get columns."""


@dataclass(frozen=True)
class ChoiceRow:
    """What was chosen on dev for one method on one task, in the order of its seeds."""

    method: str
    task: str
    role: Role
    metric: str
    seeds: tuple[int, ...]
    choices: dict[str, str]
    """The value chosen for each field; `a, b, c` by seed if the seeds differ."""
    by_seed: frozenset[str]
    """Fields in which the seeds differ."""
    dev: Entry | None
    """None if a seed has no dev score."""
    test: Entry
    chance: float | None
    """The accuracy of an answer without knowledge."""


def choice_rows(results: Sequence[CellResult]) -> tuple[ChoiceRow, ...]:
    """One row per (method, task, metric), with seeds ascending."""
    groups: dict[tuple[str, str, str, Role], list[CellResult]] = {}
    for r in results:
        key = (r.cell.task, r.cell.method, r.metrics.metric, r.cell.role)
        groups.setdefault(key, []).append(r)
    rows: list[ChoiceRow] = []
    for (task, method, metric, role), group in groups.items():
        group.sort(key=lambda r: r.cell.seed)
        rate = chance_rate(group[0].metrics.majority, group[0].metrics.guess)
        devs = [r.metrics.dev for r in group if r.metrics.dev is not None]
        fields = dict.fromkeys(name for r in group for name in r.metrics.choice)
        chosen = {f: _by_seed([r.metrics.choice.get(f) for r in group]) for f in fields}
        rows.append(
            ChoiceRow(
                method=method,
                task=task,
                role=role,
                metric=metric,
                seeds=tuple(r.cell.seed for r in group),
                choices={f: ", ".join(values) for f, values in chosen.items()},
                by_seed=frozenset(f for f, values in chosen.items() if len(values) > 1),
                dev=entry(devs) if len(devs) == len(group) else None,
                test=entry([r.metrics.test for r in group]),
                chance=rate if metric == "accuracy" else None,
            )
        )
    return tuple(rows)


def choice_fields(rows: Sequence[ChoiceRow]) -> tuple[list[str], dict[str, str]]:
    """Fields that have columns, and the values of those that do not: if there are many fields, those with
    one value for all rows and seeds."""
    values: dict[str, dict[str, None]] = {}
    for row in rows:
        for field, value in row.choices.items():
            values.setdefault(field, {})[value] = None
    if len(values) <= MOST_FIELDS:
        return list(values), {}
    differing = frozenset[str]().union(*(row.by_seed for row in rows))
    settled = {
        field: next(iter(choices))
        for field, choices in values.items()
        if len(choices) == 1 and field not in differing
    }
    return [field for field in values if field not in settled], settled


def _by_seed(values: Sequence[str | int | float | bool | None]) -> list[str]:
    """One text for each seed, or a single one if they are all the same."""
    texts = [f"{v:g}" if isinstance(v, float) else "–" if v is None else str(v) for v in values]
    return texts[:1] if len(set(texts)) == 1 else texts


def what_was_chosen(rows: Sequence[ChoiceRow]) -> str:
    """Where the choices of these rows were made, for captions."""
    has_answer = any("answer" in row.choices for row in rows)
    return "What was chosen on dev" + (" (a constant's answer on train)" if has_answer else "")


def choices_table(rows: Sequence[ChoiceRow]) -> PlainTable:
    """What was chosen on dev."""
    fields, _ = choice_fields(rows)
    several = any(len(row.seeds) > 1 for row in rows)
    return PlainTable(
        f"{what_was_chosen(rows)}; metrics × 100",
        ("task", "method", *fields, *(("seeds",) if several else ()), "dev", "test"),
        tuple(
            (
                row.task,
                row.method,
                *(row.choices.get(field, DASH) for field in fields),
                *((", ".join(map(str, row.seeds)),) if several else ()),
                mean_text(row.dev),
                mean_text(row.test),
            )
            for row in rows
        ),
    )


def settled_table(rows: Sequence[ChoiceRow]) -> PlainTable:
    """The settings that are the same for every method that has them."""
    _, settled = choice_fields(rows)
    return PlainTable(
        "The same wherever it applies", ("setting", "value"), tuple(settled.items()), n_names=1
    )
