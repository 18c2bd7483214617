"""`why`: why something is there; and finding a store by its id."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    SetFlag,
    console,
    emit,
    existing_home,
)
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name

if TYPE_CHECKING:
    from permafrost.flows.why.explanation import Explanation
    from permafrost.storage.artifacts import ArtifactStore, Manifest
    from permafrost.storage.features.store import FeatureStore

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Store id, artifact key, or the beginning of one.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(why)


def find_store(home: Path, name: str) -> FeatureStore | None:
    """The feature store whose id begins with `name`.

    Raises:
        InputError: several do, or `name` is empty.
        CorruptDataError: it cannot be opened.
    """
    from permafrost.storage.features.store import FeatureStore

    root = find_store_folder(home, name)
    return None if root is None else FeatureStore.open(root)


def find_store_folder(home: Path, name: str) -> Path | None:
    """The folder of the feature store whose id begins with `name`, be it damaged.

    Raises:
        InputError: several do, or `name` is empty, which every id begins with.
    """
    from permafrost.storage.features.store import store_folders

    digits = name.removeprefix("features/")
    _require_digits(digits)
    matches = [p for p in store_folders(home) if p.name.startswith(digits)]
    if len(matches) > 1:
        ids = ", ".join(p.name[:12] for p in matches)
        raise InputError(f"{quoted(name)} is ambiguous ({ids}); give more digits")
    return matches[0] if matches else None


def _require_digits(name: str) -> None:
    """Raises: InputError: nothing is named, such as by a variable of a shell that was never set."""
    if not name:
        raise InputError(
            "the ID is empty; give one, or the beginning of one, from those that 'permafrost ls' lists"
        )


def why(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="Artifact key, its beginning, or a stage name.")
    ],
    experiment: Annotated[
        Path | None,
        typer.Option(help="With a stage name: why this experiment would run that stage."),
    ] = None,
    set_: SetFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Why something ran or will run: what differs from the nearest earlier artifact of the same method, task
    and seed."""
    from permafrost.storage.keys import to_plain

    root = existing_home(home)
    _require_digits(name)
    if set_ and experiment is None:
        raise InputError(
            f"--set {set_[0]} changes an experiment, and none was named; add --experiment FILE"
        )
    if experiment is not None:
        # Imported here: a plain look at manifests needs no experiment.
        from permafrost.flows.build import build_graph
        from permafrost.flows.experiment_files.experiment_file import load_experiment
        from permafrost.flows.plan import why_stage

        rows = why_stage(build_graph(load_experiment(experiment, set_ or [])), root, name)
    else:
        rows = [_why_published(root, name)]
    if json:
        emit([{"artifact": label, **to_plain(found.as_json())} for label, found in rows])
        return
    if not rows:
        console.print(
            f"nothing would run: every {name} of this experiment is published", highlight=False
        )
    for label, found in rows:
        for line in (label, *(f"  {line}" for line in found.lines())):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _why_published(root: Path, name: str) -> tuple[str, Explanation]:
    """What an artifact is, and why it was made."""
    from permafrost.flows.why.changed_texts import CorpusParts
    from permafrost.flows.why.earlier import Earlier
    from permafrost.flows.why.explaining import Explainer
    from permafrost.storage.artifacts import ArtifactStore, parse_ref

    artifacts = ArtifactStore(root)
    manifest = _manifest_or_latest(root, artifacts, name)
    earlier = Earlier(artifacts)
    explainer = Explainer(earlier, lambda ref: CorpusParts.stored(artifacts.folder(parse_ref(ref))))
    found = explainer.why(manifest.spec, earlier.origins(manifest), before=manifest)
    return f"{manifest.ref} ({found.place})", found


def _manifest_or_latest(root: Path, artifacts: ArtifactStore, name: str) -> Manifest:
    """The artifact of this key, or the latest of this stage.

    Raises:
        NotFoundError: there is none.
    """
    of_stage = list(artifacts.all(name)) if "/" not in name else []
    if of_stage:
        return of_stage[-1]
    try:
        ref = artifacts.find(name)
    except NotFoundError as error:
        if (why_none := _why_no_artifact(root, artifacts, name)) is None:
            raise
        raise NotFoundError(why_none) from error
    return artifacts.manifest(ref)


def _why_no_artifact(root: Path, artifacts: ArtifactStore, name: str) -> str | None:
    """What a name is that is of no artifact: a store, or a stage; None for a key."""
    if find_store_folder(root, name) is not None:
        return (
            f"{quoted(name)} is a feature store, and 'why' is of artifacts; 'permafrost show {name}' says "
            "what it holds and which runs used it, 'permafrost why extract --experiment FILE' what an "
            "experiment would add"
        )
    if "/" in name or set(name) <= set("0123456789abcdef"):
        return None
    published = ", ".join(sorted({ref.stage for ref in artifacts.refs()})) or "nothing"
    return (
        f"nothing of stage {quoted(name)} has been published under {public_name(artifacts.root)}, of others "
        f"{published}; add --experiment FILE for why an experiment would run it"
    )
