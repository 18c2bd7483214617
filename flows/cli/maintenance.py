"""`verify`, `repair`, `gc`: keeping what is there right and small."""

from pathlib import Path
from typing import Annotated

import typer

from flows.board import Board, StageProgress
from flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    console,
    emit,
    home_folder,
    size,
    table,
)
from flows.cli.inspection import find_store
from flows.garbage import collect
from storage.artifacts import ArtifactRef, ArtifactStore
from storage.durable import bytes_under
from storage.features.store import FeatureStore, all_stores
from storage.features.verification import discard
from storage.features.verification import verify as verify_store
from storage.features.writing import writing

BackboneFlag = Annotated[
    str | None, typer.Option(help="Where the backbone is now, if it moved since the extraction.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(verify)
    app.command()(repair)
    app.command()(gc)


def _chosen(root: Path, name: str | None) -> tuple[list[FeatureStore], list[ArtifactRef]]:
    artifacts = ArtifactStore(root)
    if name is None:
        return all_stores(root), artifacts.refs()
    store = find_store(root, name)
    return ([store], []) if store is not None else ([], [artifacts.find(name)])


def verify(
    name: Annotated[
        str | None, typer.Argument(help="A store or artifact; everything by default.")
    ] = None,
    recompute: Annotated[
        int,
        typer.Option(
            min=0, help="Also run this many random texts through the backbone and compare."
        ),
    ] = 0,
    backbone: BackboneFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Read every checksum and receipt; exit code 1 if anything is damaged or differs."""
    root = home_folder(home)
    stores, refs = _chosen(root, name)
    artifacts = ArtifactStore(root)
    problems: list[dict[str, str]] = []
    differences: list[dict[str, object]] = []
    with Board(console) as board:
        for store in stores:
            label = f"features/{store.store_id[:12]}"
            found = verify_store(store, StageProgress(board, f"verify {label}"))
            problems += [{"where": label, "problem": damage.problem} for damage in found]
            if recompute and not problems:
                differences += _recompute(
                    store, recompute, backbone, StageProgress(board, f"recompute {label}")
                )
        for ref in refs:
            problems += [{"where": str(ref), "problem": p} for p in artifacts.problems(ref)]
    disagreeing = [d for d in differences if not d["agrees"]]
    if json:
        emit({"problems": problems, "recomputed": differences})
    else:
        _print_verification(problems, differences, len(stores), len(refs))
    if problems or disagreeing:
        raise typer.Exit(1)


def _recompute(
    store: FeatureStore, n_texts: int, source: str | None, progress: StageProgress
) -> list[dict[str, object]]:
    from stages.extraction.backbone import load_backbone
    from stages.extraction.recompute import recompute
    from stages.extraction.target import target_of_store

    target = target_of_store(store.record, tuple(store.arrays()), source)
    loaded = load_backbone(target.files, target.identity.compute_dtype)
    found = recompute(store, target, loaded, n_texts, seed=0, progress=progress)
    return [{"store": store.store_id, **vars(r), "agrees": r.agrees} for r in found]


def _print_verification(
    problems: list[dict[str, str]],
    differences: list[dict[str, object]],
    n_stores: int,
    n_artifacts: int,
) -> None:
    for problem in problems:
        console.print(
            f"{problem['where']}: {problem['problem']}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if differences:
        listing = table(
            "Recomputed against stored", "array", "largest difference", "tolerance", "verdict"
        )
        for row in differences:
            verdict = "agrees" if row["agrees"] else "DIFFERS"
            listing.add_row(
                str(row["array"]), f"{row['difference']:.2e}", f"{row['tolerance']:.2e}", verdict
            )
        console.print(listing)
    what = f"{n_stores} feature store(s) and {n_artifacts} artifact(s)"
    console.print(
        f"{len(problems)} problem(s) in {what}" if problems else f"every checksum of {what} matches"
    )


def repair(
    name: Annotated[str, typer.Argument(help="The store or artifact to repair.")],
    backbone: BackboneFlag = None,
    home: HomeFlag = DEFAULT_HOME,
) -> None:
    """Compute damaged cells of a store again, and only those; drop a damaged artifact."""
    root = home_folder(home)
    stores, refs = _chosen(root, name)
    artifacts = ArtifactStore(root)
    for ref in refs:
        if not artifacts.problems(ref):
            console.print(f"{ref}: nothing is damaged")
            continue
        artifacts.remove(ref)
        console.print(
            f"{ref} was damaged and is removed; the next run of its experiment makes it again"
        )
    for store in stores:
        _repair_store(store, backbone)


def _repair_store(store: FeatureStore, source: str | None) -> None:
    from stages.extraction.extract import recompute_cells
    from stages.extraction.target import ExtractRuntime, target_of_store

    label = f"features/{store.store_id[:12]}"
    with Board(console) as board:
        damage = verify_store(store, StageProgress(board, f"verify {label}"))
        arrays = tuple(store.arrays())
        for item in damage:
            board.say(f"{label}: {item.problem}")
        with writing(store) as writer:
            cells = discard(writer, damage)
        lost = [d.segment for d in damage if d.segment is not None and d.array is None]
        if lost:
            console.print(
                f"{label}: dropped {len(lost)} segment(s) whose table was damaged; the next extraction of "
                f"their corpus computes their texts again"
            )
        if not cells:
            console.print(f"{label}: {len(damage)} problem(s), no cell to compute again")
            return
        target = target_of_store(store.record, arrays, source)
        progress = StageProgress(board, f"repair {label}")
        tokens = recompute_cells(store, target, cells, ExtractRuntime(), progress)
    n_cells = sum(map(len, cells.values()))
    console.print(f"{label}: {n_cells} cell(s) computed again ({tokens:,} tokens)")


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    keep: Annotated[
        list[str] | None, typer.Option(help="Artifact or store to keep as well; may be repeated.")
    ] = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Remove what no experiment's latest run used: artifacts, drafts, and feature stores."""
    root = home_folder(home)
    garbage = collect(root, keep or [])
    freed = {str(path.relative_to(root)): bytes_under(path) for path in garbage.folders}
    if not dry_run:
        garbage.remove()
    if json:
        emit(
            {
                "removed": freed,
                "bytes": sum(freed.values()),
                "dry_run": dry_run,
                "kept": garbage.n_kept,
            }
        )
        return
    for path, n_bytes in freed.items():
        console.print(f"{size(n_bytes):>10}  {path}", markup=False, highlight=False)
    verb = "would remove" if dry_run else "removed"
    console.print(f"{verb} {len(freed)} ({size(sum(freed.values()))}); kept {garbage.n_kept}")
