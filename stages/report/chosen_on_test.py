"""What choosing the epoch on test would have given: a diagnostic, which chooses nothing.

Source: FREEZE!'s notebooks report the best test score over epochs. Here dev chooses, and this stands beside.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.metrics.tested_epochs import TEST_BY_EPOCH, TESTED_EPOCHS
from permafrost.stages.report.cells import Cell, CellResult
from permafrost.stages.report.entries import entry, hundredths, signed
from permafrost.stages.report.markup import PlainTable
from permafrost.storage.errors import CorruptDataError

_TITLE = (
    "Not a result: the highest test score of any evaluated epoch, which chose nothing, beside the score at "
    "the epoch that dev chose, × 100, means over seeds"
)


def chosen_on_test_table(results: Sequence[CellResult]) -> PlainTable:
    """A row for each method and task whose test scores by epoch were kept.

    Raises:
        CorruptDataError: a file of them cannot be read.
    """
    found: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    for r in results:
        history = r.cell.history
        if history is None or not (history.parent / TEST_BY_EPOCH).exists():
            continue
        rows = _rows(r.cell)
        epoch, best = max(rows, key=lambda row: (row[1], -row[0]))
        found.setdefault((r.cell.task, r.cell.method), []).append((r.metrics.test, best, epoch))
    rows = [
        (
            *(task, method),
            *(hundredths(entry(values).mean) for values in (honest, best)),
            signed(entry(best).mean - entry(honest).mean),
            ", ".join(str(epoch) for _, _, epoch in cells),
        )
        for (task, method), cells in found.items()
        for honest, best in [([a for a, _, _ in cells], [b for _, b, _ in cells])]
    ]
    header = ("task", "method", "chosen on dev", "chosen on test", "difference", "its epochs")
    return PlainTable(_TITLE, header, tuple(rows))


def _rows(cell: Cell) -> list[tuple[int, float]]:
    """Evaluated epochs and the score on test after each."""
    assert cell.history is not None
    path = cell.history.parent / TEST_BY_EPOCH
    try:
        table = pq.read_table(path, columns=TESTED_EPOCHS.names).cast(TESTED_EPOCHS)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise CorruptDataError(
            f"{path} ({cell.label}) holds no test scores by epoch ({error}); delete the artifact and fit it "
            "again"
        ) from error
    epochs, scores = (table.column(name).to_pylist() for name in TESTED_EPOCHS.names)
    return list(zip(epochs, scores, strict=True))
