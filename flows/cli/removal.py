"""`gc` and `drop`: keeping a home small. Both say what goes before it goes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    WaitFlag,
    console,
    emit,
    existing_home,
    print_rows,
    say,
    size,
)

if TYPE_CHECKING:
    from permafrost.flows.disk.array_drops import Allowed, DropPlan
    from permafrost.flows.disk.dropping import Dropped
    from permafrost.flows.disk.garbage import Garbage

YesFlag = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Do not ask; without a terminal, and with --json, nobody is asked."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(gc)
    app.command()(drop)


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Artifact, store or run (mine@2) to keep as well; may be repeated."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Only what no run has used for so long: 12h, 30d, 8w."),
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            help="Only as much as brings the home down to this size, what was used longest ago first: 200GB. "
            "Exit code 1 if that is not enough."
        ),
    ] = None,
    older: Annotated[
        bool,
        typer.Option("--older", help="Also what earlier versions made and no run of today reuses."),
    ] = False,
    yes: YesFlag = False,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Say what neither the latest run of an experiment nor a pinned one used, and remove it: artifacts,
    drafts, and feature stores."""
    from permafrost.flows.disk.dropping import dropped
    from permafrost.flows.disk.garbage import collect
    from permafrost.flows.disk.limits import parse_limits
    from permafrost.flows.records.history import histories

    limits = parse_limits(older_than, quota)
    root = existing_home(home)
    garbage = collect(root, keep or [], "remove" if older else "keep", limits)
    drops = dropped(root, garbage, histories(root))
    freed = {drop.path: drop.bytes for drop in drops}
    if not json:
        # Before anything is removed.
        _say_drops(drops)
    staying = garbage.staying
    if not dry_run and (json or agreed(len(drops), sum(freed.values()), yes)):
        staying = garbage.remove()
    stays = {path.relative_to(root).as_posix(): why for path, why in staying.items()}
    n_freed = sum(n for path, n in freed.items() if path not in stays)
    done = garbage.less(staying)
    is_over = limits.quota_bytes is not None and (done.bytes_left or 0) > limits.quota_bytes
    if json:
        emit(
            {
                "removed": {path: n for path, n in freed.items() if path not in stays},
                "drops": [drop.as_json() for drop in drops],
                "stayed": stays,
                "bytes": n_freed,
                "bytes_left": done.bytes_left,
                "over_quota": is_over,
                "dry_run": dry_run,
                "kept": done.n_kept,
                "kept_older": done.n_older,
            }
        )
    else:
        verb = "would remove" if dry_run else "removed"
        n_removed = sum(path not in stays for path in freed)
        console.print(f"{verb} {n_removed} ({size(n_freed)}); kept {done.n_kept}")
        _say_rest(done, stays, limits.quota_bytes if is_over else None)
    if is_over:
        raise typer.Exit(1)


def agreed(n: int, n_bytes: int, yes: bool) -> bool:
    """Whether whoever sits at the terminal wants that; nobody is asked where there is none, or nothing to do.

    Raises:
        Exit: they do not.
    """
    if yes or not n or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    if typer.confirm(f"remove these {n} ({size(n_bytes)})?"):
        return True
    say("nothing was removed")
    raise typer.Exit(1)


def _say_rest(garbage: Garbage, stays: Mapping[str, str], exceeded: int | None) -> None:
    for path, why in stays.items():
        say(f"{path} stays: {why}")
    if garbage.n_older:
        console.print(
            f"{garbage.n_older} of them were made by an earlier version and are not reused, but load as "
            "ever; --older removes these too"
        )
    if exceeded is not None:
        say(
            f"the home takes {size(garbage.bytes_left or 0)} without all this, more than the quota of "
            f"{size(exceeded)}: the rest is of latest, pinned or unfinished runs, is named with "
            "--keep, is being written, or is "
            "younger than --older-than. 'permafrost du' says what takes the space, 'permafrost "
            "drop' drops layers"
        )


def _say_drops(drops: Sequence[Dropped]) -> None:
    """By run, the earliest first; what no record names last."""
    from permafrost.flows.disk.dropping import NO_RUN

    for run, of_run in groupby(drops, key=lambda drop: drop.run):
        listed = list(of_run)
        say(f"{run or NO_RUN}: {len(listed)} ({size(sum(drop.bytes for drop in listed))})")
        for drop in listed:
            say(f"{size(drop.bytes):>10}  {drop.what}  {drop.path}")


def drop(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Store id, or its beginning; not needed where there is only one store."
        ),
    ] = None,
    arrays: Annotated[
        str,
        typer.Option(
            help="Which arrays, names or patterns with commas: 'hidden/3,values/*'.",
            show_default=False,
        ),
    ] = "",
    used: Annotated[
        bool,
        typer.Option(
            "--used",
            help="Also arrays that a latest or pinned run read; its next run extracts them again.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be dropped.")
    ] = False,
    yes: YesFlag = False,
    wait: WaitFlag = False,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Drop layers or kinds from a feature store and free their bytes; an extraction makes them again."""
    from permafrost.flows.disk.array_drops import drop_planned, plan_drop
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.storage.features.array_names import patterns_of

    root = existing_home(home)
    allowed: Allowed = "used" if used else "unused"
    plan = plan_drop(root, name, patterns_of(arrays))
    if not json:
        _say_plan(plan)
    if not dry_run:
        plan.require_allowed(allowed)
        if json or agreed(len(plan.arrays), plan.n_bytes, yes):
            with Display(console) as display:
                progress = NodeProgress(display, f"drop features/{plan.store.store_id[:12]}")
                plan = drop_planned(plan, allowed, progress, "wait" if wait else "end")
    if json:
        emit({**plan.as_json(), "dry_run": dry_run})
        return
    verb = "would drop" if dry_run else "dropped"
    if dry_run and plan.readers:
        if any(reader.what == "running" for reader in plan.readers):
            # Then it is the latest run, or an unfinished one.
            later = "" if used else "; after it, --used is needed if a run reads them"
            verb = f"refused while the run is going on{later}. It would drop"
        elif not used:
            verb = "refused without --used, with which it would drop"
    say(f"{verb} {len(plan.arrays)} array(s) ({size(plan.n_bytes)})")


def _say_plan(plan: DropPlan) -> None:
    title = f"features/{plan.store.store_id[:12]}"
    if rows := [(d.array, f"{d.n_segments:,}", size(d.bytes)) for d in plan.arrays]:
        print_rows(title, ("array", "n segments", "size"), rows)
    if plan.dropped_already:
        say(f"dropped already, and not there in {title}: {', '.join(plan.dropped_already)}")
    if plan.left_behind:
        say(
            f"{size(plan.left_behind)} of {title} are left of a drop that was killed; they go as well"
        )
    for reader in plan.as_json()["read_by"]:
        reads = "reads" if reader["is_known"] else "may read"
        say(f"the {reader['what']} run {reader['run']} {reads} {', '.join(reader['arrays'])}")
