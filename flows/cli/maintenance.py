"""`verify` and `repair`: keeping what is there right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    PluginsFlag,
    console,
    emit,
    existing_home,
    load_plugins,
    table,
)
from permafrost.flows.cli.inspection import find_store_folder
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError

if TYPE_CHECKING:
    from permafrost.flows.engine.progress import NodeProgress
    from permafrost.storage.artifacts import ArtifactRef
    from permafrost.storage.features.store import FeatureStore

BackboneFlag = Annotated[
    str | None, typer.Option(help="Where the backbone is now, if it moved since the extraction.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(verify)
    app.command()(repair)


def _chosen(root: Path, name: str | None) -> tuple[list[Path], list[ArtifactRef]]:
    """Folders of stores, and artifacts."""
    from permafrost.storage.artifacts import ArtifactStore
    from permafrost.storage.features.store import store_folders

    artifacts = ArtifactStore(root)
    if name is None:
        return store_folders(root), artifacts.refs()
    folder = find_store_folder(root, name)
    return ([folder], []) if folder is not None else ([], [artifacts.find(name)])


def verify(
    name: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A store or artifact; everything by default."),
    ] = None,
    recompute: Annotated[
        int,
        typer.Option(
            min=0, help="Also run this many random texts through the backbone and compare."
        ),
    ] = 0,
    backbone: BackboneFlag = None,
    plugins: PluginsFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Read every checksum and receipt; exit code 1 if anything is damaged or differs."""
    from permafrost.flows.damage import artifact_problems, store_problems
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.flows.records.history import histories, history_problems
    from permafrost.flows.records.pins import pin_problems
    from permafrost.flows.records.runs import run_files, run_problems
    from permafrost.storage.artifacts import ArtifactStore
    from permafrost.storage.features.store import FeatureStore
    from permafrost.storage.replica import public_name

    load_plugins(plugins)
    root = existing_home(home)
    folders, refs = _chosen(root, name)
    if not (folders or refs or run_files(root)):
        raise NotFoundError(
            f"there is nothing to verify in {public_name(root)}: no feature store, no artifact and no record "
            "of a run; name another home with --home"
        )
    artifacts = ArtifactStore(root)
    problems: list[dict[str, str]] = []
    differences: list[dict[str, object]] = []
    with Display(console) as display:
        for folder in folders:
            label = f"features/{folder.name[:12]}"
            in_store = store_problems(folder, NodeProgress(display, f"verify {label}"))
            problems += [{"where": label, "problem": problem} for problem in in_store]
            if recompute and not in_store:
                store = FeatureStore.open(folder)
                differences += _recompute(
                    store, recompute, backbone, NodeProgress(display, f"recompute {label}")
                )
        for ref in refs:
            problems += [
                {"where": str(ref), "problem": p} for p in artifact_problems(artifacts, ref)
            ]
    for path in run_files(root) if name is None else ():
        where = path.relative_to(root).as_posix()
        problems += [{"where": where, "problem": p} for p in run_problems(root, path)]
    found = histories(root) if name is None else {}
    of_pins = pin_problems(root) if name is None else []
    of_runs = [
        {"where": path.relative_to(root).as_posix(), "problem": problem}
        for path, problem in (*history_problems(found.values()), *of_pins)
    ]
    # The record of an earlier version counts as a run too.
    problems += [problem for problem in of_runs if problem not in problems]
    disagreeing = [d for d in differences if not d["agrees"]]
    if json:
        emit({"problems": problems, "recomputed": differences})
    else:
        _print_verification(problems, differences, len(folders), len(refs))
    if problems or disagreeing:
        raise typer.Exit(1)


def _recompute(
    store: FeatureStore, n_texts: int, source: str | None, progress: NodeProgress
) -> list[dict[str, object]]:
    from permafrost.stages.extraction.backbone import load_backbone
    from permafrost.stages.extraction.recompute import recompute
    from permafrost.stages.extraction.target import target_of_store
    from permafrost.storage.adapted_stores import backbone_of_store

    where = backbone_of_store(store, source)
    target = target_of_store(store.record, tuple(store.arrays()), where)
    loaded = load_backbone(target.files, target.identity.compute_dtype)
    differences = recompute(store, target, loaded, n_texts, seed=0, progress=progress)
    return [{"store": store.store_id, **vars(r), "agrees": r.agrees} for r in differences]


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
            "Recomputed against stored",
            *("store", "array", "largest difference", "tolerance", "verdict"),
        )
        for row in differences:
            verdict = "agrees" if row["agrees"] else "DIFFERS"
            listing.add_row(
                *(str(row["store"])[:12], str(row["array"])),
                *(f"{row['difference']:.2e}", f"{row['tolerance']:.2e}", verdict),
            )
        console.print(listing)
    what = f"{n_stores} feature store(s) and {n_artifacts} artifact(s)"
    console.print(
        f"{len(problems)} problem(s) in {what}" if problems else f"every checksum of {what} matches"
    )


def repair(
    name: Annotated[str, typer.Argument(metavar="ID", help="The store or artifact to repair.")],
    backbone: BackboneFlag = None,
    plugins: PluginsFlag = None,
    home: HomeFlag = DEFAULT_HOME,
) -> None:
    """Compute damaged cells of a store again, and only those; drop a damaged artifact."""
    from permafrost.storage.artifacts import ArtifactStore

    load_plugins(plugins)
    root = existing_home(home)
    folders, refs = _chosen(root, name)
    artifacts = ArtifactStore(root)
    for ref in refs:
        if not artifacts.problems(ref):
            console.print(f"{ref}: nothing is damaged")
            continue
        artifacts.remove(ref)
        console.print(
            f"{ref} was damaged and is removed; the next run of its experiment makes it again"
        )
    for folder in folders:
        _repair_store(folder, backbone)


def _repair_store(folder: Path, source: str | None) -> None:
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.stages.extraction.recipes.recipe import recipe_of
    from permafrost.stages.extraction.recompute import compute_again
    from permafrost.storage.features.repairing import mend
    from permafrost.storage.features.store import FeatureStore

    try:
        recipe = FeatureStore.open(folder).record.identity.recipe
    except (CorruptDataError, InputError):
        recipe = None  # what mending tells, and may restore
    if recipe is not None:
        # Before damaged cells are dropped, which cannot be computed without it.
        recipe_of(recipe)
    label = f"features/{folder.name[:12]}"
    with Display(console) as display:
        mended = mend(folder, NodeProgress(display, f"verify {label}"))
        for problem in mended.problems:
            display.say(f"{label}: {problem}")
        if n := len(mended.restored_tables):
            display.say(f"{label}: {n} segment table(s) restored from their copies")
        if n := len(mended.dropped_segments):
            display.say(
                f"{label}: dropped {n} segment(s) whose table was damaged and had no copy; the next "
                f"extraction of their corpus computes their texts again"
            )
        if not mended.cells and not mended.projections:
            display.say(f"{label}: {len(mended.problems)} problem(s), no cell to compute again")
            return
        done = compute_again(mended, source, NodeProgress(display, f"repair {label}"))
    console.print(f"{label}: {done}", markup=False, highlight=False, soft_wrap=True)
