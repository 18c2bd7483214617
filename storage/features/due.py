"""What a repair has dropped and not computed again yet: `repair.json`, so that a killed repair is known, and
the next one computes what it lacks.

Written before anything is dropped, removed when all is there again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.storage.durable import is_there, remove, rewrite
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.projections import has_projection
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.replica import public_name
from permafrost.storage.sealed import read_sealed, sealed_bytes

Cells = Mapping[int, Sequence[str]]


class Due(BaseModel):
    """Content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cells: dict[int, tuple[str, ...]] = {}
    """Arrays by segment."""
    projections: tuple[int, ...] = ()
    """Blocks whose output projection was dropped."""

    def and_also(self, cells: Cells, projections: Sequence[int]) -> "Due":
        """Both together."""
        merged = {
            segment: tuple(sorted({*self.cells.get(segment, ()), *cells.get(segment, ())}))
            for segment in sorted({*self.cells, *cells})
        }
        return Due(cells=merged, projections=tuple(sorted({*self.projections, *projections})))

    def __bool__(self) -> bool:
        return bool(self.cells or self.projections)


def due_path(root: Path) -> Path:
    """Where the file lies, if there is one."""
    return root / "repair.json"


def read_due(store: FeatureStore) -> Due:
    """What is due now: what has been computed since, also by an extraction, is not.

    Raises:
        CorruptDataError: the file is damaged.
    """
    path = due_path(store.root)
    if not is_there(path):
        return Due()
    try:
        noted = Due.model_validate(read_sealed(path)[0])
    except (CorruptDataError, ValidationError) as error:
        what = error if isinstance(error, CorruptDataError) else f"{public_name(path)} is damaged"
        raise CorruptDataError(
            f"{what}; 'permafrost repair {store.store_id[:12]}' removes it, and the next extraction computes "
            "what is missing"
        ) from error
    tables = set(store.tables())
    lacking = {
        segment: tuple(array for array in arrays if array not in store.committed(segment))
        for segment, arrays in noted.cells.items()
        if segment in tables
    }
    cells = {segment: arrays for segment, arrays in lacking.items() if arrays}
    blocks = tuple(block for block in noted.projections if not has_projection(store, block))
    return Due(cells=cells, projections=blocks)


def note_due(store: FeatureStore, due: Due) -> None:
    """Write the file, or remove it if nothing is due."""
    path = due_path(store.root)
    if due:
        rewrite(path, sealed_bytes(due.model_dump(mode="json")))
    elif is_there(path):
        remove(path)


def due_problems(store: FeatureStore) -> list[str]:
    """That a repair did not end, or that the file is damaged."""
    try:
        due = read_due(store)
    except CorruptDataError as error:
        return [str(error)]
    if not due:
        return []
    n_cells = sum(map(len, due.cells.values()))
    return [
        f"a repair of {store.root} did not end: {n_cells} cell(s) and {len(due.projections)} output "
        f"projection(s) that it dropped are not there; run 'permafrost repair {store.store_id[:12]}' again"
    ]
