"""`ls`, `show`, `why`, `du`: what is there."""

from pathlib import Path
from typing import Annotated, Any

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    SetFlag,
    console,
    emit,
    home_folder,
    size,
    table,
)
from permafrost.storage.artifacts import ArtifactStore, Manifest
from permafrost.storage.durable import bytes_under
from permafrost.storage.errors import InputError
from permafrost.storage.explain import explain
from permafrost.storage.features.store import FeatureStore, all_stores, store_folders
from permafrost.storage.keys import to_plain
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name

IdArgument = Annotated[str, typer.Argument(help="Store id, artifact key, or the beginning of one.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("ls")(list_everything)
    app.command()(show)
    app.command()(why)
    app.command()(du)


def find_store(home: Path, name: str) -> FeatureStore | None:
    """The feature store whose id begins with `name`.

    Raises:
        InputError: several do.
        CorruptDataError: it cannot be opened.
    """
    root = find_store_folder(home, name)
    return None if root is None else FeatureStore.open(root)


def find_store_folder(home: Path, name: str) -> Path | None:
    """The folder of the feature store whose id begins with `name`, be it damaged.

    Raises:
        InputError: several do.
    """
    matches = [p for p in store_folders(home) if p.name.startswith(name.removeprefix("features/"))]
    if len(matches) > 1:
        ids = ", ".join(p.name[:12] for p in matches)
        raise InputError(f"{quoted(name)} is ambiguous ({ids}); give more digits")
    return matches[0] if matches else None


def list_everything(home: HomeFlag = DEFAULT_HOME, json: JsonFlag = False) -> None:
    """List feature stores and artifacts."""
    root = home_folder(home)
    stores, artifacts = all_stores(root), list(ArtifactStore(root).all())
    if json:
        emit(
            {
                "stores": [_store_json(s) for s in stores],
                "artifacts": [_row_json(m) for m in artifacts],
            }
        )
        return
    listing = table(
        "Feature stores",
        "store",
        "backbone",
        "recipe",
        "dtype",
        "n texts",
        "n tokens",
        "size",
        "arrays",
    )
    for store in stores:
        info = _store_json(store)
        identity = store.record.identity
        listing.add_row(
            store.store_id[:12],
            store.record.backbone["source"],
            identity.recipe["kind"],
            f"{identity.compute_dtype} > {identity.storage_dtype}",
            f"{info['n_texts']:,}",
            f"{info['n_tokens']:,}",
            size(info["bytes"]),
            _short(info["arrays"]),
        )
    console.print(listing)
    listing = table("\nArtifacts", "artifact", "made", "what", "size")
    for manifest in artifacts:
        what = ", ".join(f"{k} {v}" for k, v in manifest.summary.items())
        listing.add_row(
            f"{manifest.spec.stage}/{manifest.key[:12]}",
            str(manifest.provenance.get("published", ""))[:19],
            what[:80],
            size(sum(f.bytes for f in manifest.files.values())),
        )
    console.print(listing)


def show(name: IdArgument, home: HomeFlag = DEFAULT_HOME, json: JsonFlag = False) -> None:
    """Everything known of one store or artifact."""
    root = home_folder(home)
    store = find_store(root, name)
    if store is not None:
        value = {
            **_store_json(store),
            **store.record.model_dump(mode="json"),
            "path": public_name(store.root),
        }
    else:
        artifacts = ArtifactStore(root)
        manifest = artifacts.manifest(artifacts.find(name))
        value = {
            **manifest.model_dump(mode="json"),
            "path": public_name(artifacts.folder(manifest.ref)),
        }
    if json:
        emit(value)
    else:
        console.print_json(data=value)


def why(
    name: Annotated[str, typer.Argument(help="Artifact key, its beginning, or a stage name.")],
    experiment: Annotated[
        Path | None,
        typer.Option(help="With a stage name: why this experiment would run that stage."),
    ] = None,
    set_: SetFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Why something ran or will run: what differs from the nearest earlier artifact, field by field."""
    root = home_folder(home)
    artifacts = ArtifactStore(root)
    if experiment is not None:
        # Imported here: an experiment needs torch, a plain look at two manifests does not.
        from permafrost.flows.build import build_graph
        from permafrost.flows.experiment import load_experiment
        from permafrost.flows.plan import why_stage

        rows = why_stage(build_graph(load_experiment(experiment, set_ or [])), root, name)
    else:
        manifest = _manifest_or_latest(artifacts, name)
        rows = [
            (
                f"{manifest.spec.stage}/{manifest.key[:12]}",
                explain(artifacts, manifest.spec, before=manifest),
            )
        ]
    if json:
        emit([{"artifact": label, **to_plain(change.as_json())} for label, change in rows])
        return
    for label, change in rows:
        nearest = (
            ""
            if change.nearest is None
            else f" (nearest: {change.nearest.spec.stage}/{change.nearest.key[:12]})"
        )
        console.print(
            f"{label}: {change.headline}{nearest}", highlight=False, markup=False, soft_wrap=True
        )
        for difference in change.differences:
            console.print(f"  {difference}", highlight=False, markup=False, soft_wrap=True)


def _manifest_or_latest(artifacts: ArtifactStore, name: str) -> Manifest:
    of_stage = list(artifacts.all(name)) if "/" not in name else []
    return of_stage[-1] if of_stage else artifacts.manifest(artifacts.find(name))


def du(home: HomeFlag = DEFAULT_HOME, json: JsonFlag = False) -> None:
    """Disk use by store, array and stage (blocks really allocated)."""
    root = home_folder(home)
    rows: list[tuple[str, str, int]] = []
    for store in all_stores(root):
        where = f"features/{store.store_id[:12]}"
        rows += [(where, array, bytes_under(store.zarr_path / array)) for array in store.arrays()]
        rows += [
            (where, name, bytes_under(store.root / name))
            for name in ("segments", "receipts", "copies")
        ]
    stages = sorted(p for p in (root / "artifacts").glob("*") if p.is_dir())
    rows += [("artifacts", p.name, bytes_under(p)) for p in stages]
    total = bytes_under(root) if root.exists() else 0
    if json:
        emit({"rows": [{"where": w, "what": n, "bytes": b} for w, n, b in rows], "total": total})
        return
    listing = table("", "where", "what", "size")
    for where, what, n_bytes in rows:
        listing.add_row(where, what, size(n_bytes))
    console.print(listing)
    console.print(f"total {size(total)} in {public_name(root)}")


def _store_json(store: FeatureStore) -> dict[str, Any]:
    numbers = store.segments()
    return {
        "store_id": store.store_id,
        "backbone": store.record.backbone["source"],
        "n_segments": len(numbers),
        "n_texts": sum(store.segment(s).n_texts for s in numbers),
        "n_tokens": sum(store.segment(s).n_tokens for s in numbers),
        "bytes": bytes_under(store.root),
        "arrays": store.arrays(),
        "incomplete_cells": sum(map(len, store.missing_cells(numbers, store.arrays()).values())),
    }


def _row_json(manifest: Manifest) -> dict[str, object]:
    return {
        "artifact": str(manifest.ref),
        "summary": manifest.summary,
        "published": manifest.provenance.get("published"),
        "bytes": sum(f.bytes for f in manifest.files.values()),
    }


def _short(names: list[str]) -> str:
    kinds: dict[str, int] = {}
    for name in names:
        if "/" in name:
            kind = name.rpartition("/")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{kind} ({n})" for kind, n in kinds.items())
