"""Pinned runs: what they used is kept by garbage collection until they are let go.

A pin is a file, `<home>/runs/pinned/<experiment>/000002.json`, whose name says it all.
"""

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

from permafrost.flows.records.history import Run, find_run, run_name
from permafrost.flows.records.read_arrays import arrays_read
from permafrost.storage.adapted_stores import names_of_store
from permafrost.storage.artifacts import ArtifactStore, parse_ref
from permafrost.storage.durable import remove, write_durably
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.layout import in_order
from permafrost.storage.features.record import has_record
from permafrost.storage.features.store import DERIVED, FeatureStore, store_folder
from permafrost.storage.gate import removing
from permafrost.storage.quoting import counted
from permafrost.storage.sealed import sealed_bytes

_NAME = re.compile(r"0*(\d+)\.json")
_STORE = "features/"


def pin_path(home: Path, run: str) -> Path:
    """The file that pins a run, `mine@2`."""
    experiment, _, number = run.rpartition("@")
    return home / "runs" / "pinned" / experiment / f"{int(number):06d}.json"


def pin(home: Path, name: str) -> Run:
    """Keep what a run used.

    Raises:
        NotFoundError: there is no such run.
        InputError: it has not ended, or some of what it used is not there (any more).
        CorruptDataError: its record is damaged.
        StoreBusyError: something of the home is being removed.
    """
    # Nothing of it is removed between looking and writing.
    with removing(home):
        return _pin(home, find_run(home, name))


def _pin(home: Path, run: Run) -> Run:
    if run.ended is None or run.ended.outcome != "done":
        raise InputError(
            f"{run.name} cannot be pinned: it {_state(run)}, so not all that it was to make is there; run "
            "it to its end, and pin that run"
        )
    if gone := missing(home, run):
        raise InputError(
            f"{run.name} cannot be pinned: {_why_missing(run, gone)}, and pin that run"
        )
    if dropped := _dropped_arrays(home, run):
        raise InputError(
            f"{run.name} cannot be pinned: of what it read, {', '.join(dropped)} "
            f"{'is' if len(dropped) == 1 else 'are'} not there any more, as after 'permafrost drop'; run it "
            "again with the same settings, and pin that run"
        )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_durably(pin_path(home, run.name), sealed_bytes({"run": run.name, "pinned": now}))
    return run


def _why_missing(run: Run, gone: Sequence[str]) -> str:
    if run.extracted_only:
        return (
            "it extracted only, so not all of its experiment is there; run 'downstream' of the same "
            "experiment"
        )
    n_stores = sum(name.startswith(_STORE) for name in gone)
    counts = {
        "artifact": (len(gone) - n_stores, len(run.refs)),
        "feature store": (n_stores, len(run.stores)),
    }
    said = [f"{n:,} of {counted(of, what)}" for what, (n, of) in counts.items() if n]
    verb = "is" if len(gone) == 1 else "are"
    return (
        f"{' and '.join(said)} that it used {verb} gone, such as {gone[0]}; run it again with the same "
        "settings"
    )


def _dropped_arrays(home: Path, run: Run) -> list[str]:
    """Arrays that its artifacts were made from or extracted, and of which nothing is left: `<array> of
    features/<id>` each; nothing of stores of which that is not known."""
    artifacts, found = ArtifactStore(home), list[str]()
    for store_id in run.stores:
        read = arrays_read(artifacts, names_of_store(artifacts, store_id), run.refs)
        store = FeatureStore.open(store_folder(home, store_id))
        gone = (read or frozenset()).difference(store.arrays(), DERIVED)
        found += [f"{array} of features/{store_id[:12]}" for array in in_order(gone)]
    return found


def _state(run: Run) -> str:
    return {"running": "is running", "not ended": "has not ended"}.get(run.state, run.state)


def unpin(home: Path, name: str) -> None:
    """Let a run go.

    Raises:
        NotFoundError: it is not pinned; the message names those that are.
    """
    pins = pinned(home)
    if name not in pins:
        raise NotFoundError(f"{name} is not pinned; pinned are {', '.join(pins) or 'none'}")
    remove(pin_path(home, name))


def pinned(home: Path) -> list[str]:
    """Names of the pinned runs.

    Raises:
        CorruptDataError: a file among the pins is none.
    """
    found: list[tuple[str, int]] = []
    for path in home.glob("runs/pinned/*/*.json"):
        if (match := _NAME.fullmatch(path.name)) is None:
            raise CorruptDataError(f"{path} pins no run; delete it")
        found.append((path.parent.name, int(match[1])))
    return [run_name(*one) for one in sorted(found)]


def pinned_runs(home: Path) -> list[Run]:
    """The pinned runs.

    Raises:
        CorruptDataError: the record of one is damaged or not there.
    """
    try:
        return [find_run(home, name) for name in pinned(home)]
    except NotFoundError as error:
        raise CorruptDataError(
            f"a run that is pinned has no record ({error}); put the record back, or delete the pin under "
            f"{home / 'runs' / 'pinned'}"
        ) from error


def pin_problems(home: Path) -> list[tuple[Path, str]]:
    """What is wrong with pins: the run of one is not there, or something that it used."""
    try:
        runs = pinned_runs(home)
    except CorruptDataError as error:
        return [(home / "runs" / "pinned", str(error))]
    return [
        (
            pin_path(home, run.name),
            f"{run.name} is pinned and used {name}, which is not there; run it again with the same settings, "
            f"or let it go with 'permafrost unpin {run.name}'",
        )
        for run in runs
        for name in missing(home, run)
    ]


def missing(home: Path, run: Run) -> list[str]:
    """What a run used and is not there."""
    artifacts = ArtifactStore(home)
    return [
        *(ref for ref in run.refs if not artifacts.is_done(parse_ref(ref))),
        *(f"{_STORE}{i}" for i in run.stores if not has_record(store_folder(home, i))),
    ]
