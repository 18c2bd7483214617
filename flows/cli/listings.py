"""`ls`, `show`: what there is, and what one thing is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    console,
    emit,
    existing_home,
    print_rows,
    say,
    size,
)
from permafrost.flows.cli.history import show_run
from permafrost.flows.cli.inspection import IdArgument, find_store
from permafrost.storage.errors import NotFoundError, PermafrostError, RemovedError
from permafrost.storage.quoting import counted, quoted

if TYPE_CHECKING:
    from pathlib import Path

    from permafrost.flows.records.history import History, Run
    from permafrost.flows.records.listing import Row
    from permafrost.storage.artifacts import Manifest
    from permafrost.storage.features.store import FeatureStore

COLUMNS = ("stage", "method", "task", "seed", "dev", "test", "candidate", "id")
_STORE_COLUMNS = ("store", "backbone", "recipe", "dtype", "n texts", "n tokens", "size", "arrays")
_SHOWN = 6
"""Inputs and runs that a summary names."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ls")(list_everything)
    app.command()(show)


def list_everything(
    experiment: Annotated[
        str | None, typer.Option(help="Only what runs of this experiment used.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Only artifacts of this stage: corpus, fit, score, ...")
    ] = None,
    latest: Annotated[
        bool,
        typer.Option("--latest", help="Only what the latest run (of every experiment) used."),
    ] = False,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """List feature stores and artifacts: what each is of, its scores on dev and test, what was chosen."""
    from permafrost.flows.records.history import histories
    from permafrost.flows.records.listing import chosen_rows, list_artifacts

    root = existing_home(home)
    found = histories(root)
    runs = _runs(found, experiment, latest)
    used = None if runs is None else {ref for run in runs for ref in run.refs}
    in_runs = None if runs is None else {store for run in runs for store in run.stores}
    stores, damaged = ([], []) if stage is not None else _stores(root, in_runs)
    listing = list_artifacts(root, found.values())
    if stage is not None and stage not in (known := {row.ref.stage for row in listing.rows}):
        raise NotFoundError(
            f"there is no artifact of stage {quoted(stage)}; there are {', '.join(sorted(known)) or 'none'}"
        )
    listing = chosen_rows(listing, stage, used)
    damaged += listing.damaged
    if json:
        emit(
            {
                "stores": [info for _, info in stores],
                "artifacts": [row.as_json() for row in listing.rows],
                "damaged": damaged,
            }
        )
        return
    if stage is None:
        print_rows("Feature stores", _STORE_COLUMNS, [_store_row(*one) for one in stores])
    print_rows(
        "\nArtifacts, dev and test × 100", COLUMNS, [artifact_row(row) for row in listing.rows]
    )
    if damaged:
        say(f"{len(damaged)} more cannot be read, such as {damaged[0]}; see 'permafrost verify'")


def _stores(
    home: Path, ids: set[str] | None
) -> tuple[list[tuple[FeatureStore, dict[str, Any]]], list[str]]:
    """Feature stores (of these ids, or all) with what each holds, and the names of those that cannot be
    read."""
    from permafrost.storage.features.store import FeatureStore, store_folders

    stores, damaged = list[tuple[FeatureStore, dict[str, Any]]](), list[str]()
    for folder in store_folders(home):
        if ids is not None and folder.name not in ids:
            continue
        try:
            store = FeatureStore.open(folder)
            stores.append((store, store_json(store)))
        except (NotFoundError, RemovedError):
            continue  # removed since it was listed
        except PermafrostError:
            damaged.append(f"features/{folder.name}")
    return stores, damaged


def _runs(found: dict[str, History], experiment: str | None, latest: bool) -> list[Run] | None:
    """The runs whose artifacts are listed; None for all artifacts, whatever used them.

    Raises:
        NotFoundError: there is no such experiment.
    """
    if experiment is not None and experiment not in found:
        raise NotFoundError(
            f"no experiment {quoted(experiment)} has run here; there are {', '.join(found) or 'none'}"
        )
    if experiment is None and not latest:
        return None
    named = [h for name, h in found.items() if experiment in (None, name)]
    return [run for history in named for run in (history.runs[-1:] if latest else history.runs)]


def artifact_row(row: Row) -> tuple[str, ...]:
    """In the columns of `COLUMNS`; empty where there is nothing to say."""
    from permafrost.stages.report.entries import hundredths

    scores = ("" if value is None else hundredths(value) for value in (row.dev, row.test))
    return (
        row.ref.stage,
        row.methods,
        row.tasks,
        row.seeds,
        *scores,
        row.candidate or "",
        row.ref.key[:12],
    )


def _store_row(store: FeatureStore, info: dict[str, Any]) -> tuple[str, ...]:
    identity = store.record.identity
    return (
        store.store_id[:12],
        store.record.backbone["source"],
        identity.recipe["kind"],
        f"{identity.compute_dtype} > {identity.storage_dtype}",
        f"{info['n_texts']:,}",
        f"{info['n_tokens']:,}",
        size(info["bytes"]),
        _short(info["arrays"]),
    )


def show(
    name: IdArgument,
    code: Annotated[
        bool, typer.Option("--code", help="Also the digest of every function behind it.")
    ] = False,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """What one store, artifact or run (mine@2) is: a summary, then its settings."""
    from permafrost.flows.records.history import histories, names_run
    from permafrost.flows.records.listing import list_artifacts
    from permafrost.storage.artifacts import ArtifactStore
    from permafrost.storage.replica import public_name

    root = existing_home(home)
    if names_run(name):
        show_run(root, name, json)
        return
    found = histories(root)
    runs = [run for history in found.values() for run in history.runs]
    store = find_store(root, name)
    if store is not None:
        _show_store(store, runs, json)
        return
    artifacts = ArtifactStore(root)
    manifest = artifacts.manifest(artifacts.find(name))
    listing = list_artifacts(root, found.values())
    (row,) = [r for r in listing.rows if r.ref == manifest.ref]
    using = [run.name for run in runs if row.id in run.refs]
    maker = next(
        (r.name for r in runs if row.id in r.refs and _was_under_way(r, row.published)), None
    )
    if json:
        emit(
            {
                **manifest.model_dump(mode="json"),
                "path": public_name(artifacts.folder(manifest.ref)),
                "about": {**row.as_json(), "made_by": maker, "runs": using},
            }
        )
        return
    tasks = {r.id: r.tasks for r in listing.rows}
    for line in _summary(row, manifest, maker, using, tasks):
        say(line)
    say(f"path       {public_name(artifacts.folder(manifest.ref))}")
    console.print("settings")
    console.print_json(data=manifest.spec.config)
    if code:
        console.print("code")
        console.print_json(data=manifest.spec.code)
    else:
        say(f"code       {len(manifest.spec.code)} definitions; --code lists their digests")


def _was_under_way(run: Run, time: str) -> bool:
    """At a time in UTC, as all that are recorded."""
    ended = run.ended is None or time <= run.ended.ended
    return run.begun.begun is not None and run.begun.begun <= time and ended


def _summary(
    row: Row, manifest: Manifest, maker: str | None, runs: list[str], tasks: dict[str, str]
) -> list[str]:
    from permafrost.stages.report.entries import hundredths

    made, files = manifest.provenance, manifest.files
    of = [
        f"{word:<11}{value}"
        for word, value in (
            ("method", row.methods),
            ("task", row.tasks),
            ("seed", row.seeds),
            ("dev", "" if row.dev is None else f"{hundredths(row.dev)} ({row.metric} × 100)"),
            ("test", "" if row.test is None else f"{hundredths(row.test)} ({row.metric} × 100)"),
            ("chosen", row.candidate or ""),
        )
        if value
    ]
    told = {
        k: v
        for k, v in row.summary.items()
        if k not in ("method", "task", "seed", "dev", "test", "metric")
    }
    inputs = [
        f"{ref.partition('/')[0]}/{ref.partition('/')[2][:12]}"
        + (f" ({tasks[ref]})" if ref.startswith("corpus/") and tasks.get(ref) else "")
        for ref in manifest.spec.inputs
        if not ref.startswith("features/")
    ]
    features = sorted(
        {ref.split("/")[1] for ref in manifest.spec.inputs if ref.startswith("features/")}
    )
    seconds = made.get("seconds")
    return [
        f"{row.ref.stage} {row.ref.key}",
        *of,
        *([f"{'facts':<11}" + ", ".join(f"{k} {v}" for k, v in told.items())] if told else []),
        *([f"{'made from':<11}{_first(inputs)}"] if inputs else []),
        *([f"{'features':<11}{_first([f[:12] for f in features])}"] if features else []),
        f"{'made':<11}{made.get('published', 'unknown')}"
        + ("" if seconds is None else f", in {seconds:g} s")
        + ("" if maker is None else f", by the run {maker}"),
        f"{'on':<11}"
        + ", ".join(f"{k} {made[k]}" for k in ("host", "torch", "python", "threads") if k in made),
        f"{'size':<11}{size(row.bytes)} in {len(files)} files: {_first(sorted(files))}",
        f"{'used by':<11}{_first(runs) or 'no recorded run'}",
    ]


def _first(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more (--json has all)" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _show_store(store: FeatureStore, runs: list[Run], json: bool) -> None:
    from permafrost.storage.replica import public_name

    info, record = store_json(store), store.record
    using = [run.name for run in runs if store.store_id in run.stores]
    if json:
        about = {"path": public_name(store.root), "runs": using}
        emit({**info, **record.model_dump(mode="json"), **about})
        return
    revision = record.backbone.get("revision")
    identity = record.identity
    whole = info["incomplete_cells"] == 0
    for word, value in (
        ("backbone", record.backbone["source"] + (f" at {revision}" if revision else "")),
        ("recipe", str(identity.recipe["kind"])),
        ("computed in", f"{identity.compute_dtype}, stored in {identity.storage_dtype}"),
        ("longest", f"{identity.max_length} tokens"),
        (
            "holds",
            f"{counted(info['n_texts'], 'text')}, {counted(info['n_tokens'], 'token')} in "
            f"{counted(info['n_segments'], 'segment')}",
        ),
        ("arrays", ", ".join(info["arrays"])),
        ("complete", "yes" if whole else f"no, {info['incomplete_cells']:,} cells are missing"),
        ("size", size(info["bytes"])),
        ("made", record.created),
        ("used by", _first(using) or "no recorded run"),
        ("path", public_name(store.root)),
    ):
        say(f"{word:<12}{value}")
    console.print("record")
    console.print_json(data=record.model_dump(mode="json"))


def store_json(store: FeatureStore) -> dict[str, Any]:
    """What a store holds; a text that is in two segments counts once, its tokens twice, as on the disk."""
    import numpy as np

    from permafrost.storage.durable import bytes_under
    from permafrost.storage.features.places import n_distinct

    numbers = store.segments()
    tables = [store.segment(s).table.select(["digest", "n_tokens"]) for s in numbers]
    return {
        "store_id": store.store_id,
        "backbone": store.record.backbone["source"],
        "n_segments": len(numbers),
        "n_texts": n_distinct(table.column("digest") for table in tables),
        # Not `Segment.n_tokens`: Arrow imports pandas for it, which takes as long as all else.
        "n_tokens": sum(
            int(np.from_dlpack(c).sum()) for t in tables for c in t.column("n_tokens").chunks
        ),
        "bytes": bytes_under(store.root),
        "arrays": store.arrays(),
        "incomplete_cells": sum(map(len, store.missing_cells(numbers, store.arrays()).values())),
    }


def _short(names: list[str]) -> str:
    kinds: dict[str, int] = {}
    for name in names:
        if "/" in name:
            kind = name.rpartition("/")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{kind} ({n})" for kind, n in kinds.items())
