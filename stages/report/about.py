"""How the rows of a report came about, in words: which were trained, and whether the backbone was."""

from collections.abc import Sequence

from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import CellResult


def how_made(results: Sequence[CellResult]) -> str:
    """Counts of rows whose backbone was trained, that were trained themselves, and that were not."""
    rows = {_row(r) for r in results}
    tuned = {_row(r) for r in results if r.cell.tunes_backbone}
    trained = tuned | {
        _row(r) for r in results if r.metrics.n_parameters or r.cell.history is not None
    }
    # A constant's answer is of train.
    has_choice = any(r.metrics.choice.keys() - {"answer"} for r in results)
    return " ".join(
        (
            _backbone(len(tuned), len(rows)),
            _training(len(trained), len(rows), has_choice=has_choice),
        )
    )


def _row(r: CellResult) -> tuple[str, Role]:
    """Which row of the table it is in: a baseline that is a control on some tasks has two."""
    return r.cell.method, r.cell.role


def _backbone(n_tuned: int, n_rows: int) -> str:
    if not n_tuned:
        return "A frozen transformer was run once over the texts, and its features were stored."
    if n_tuned == n_rows:
        return "The transformer itself was trained in every row of the table."
    return (
        f"In {n_tuned} of the {n_rows} rows of the table the transformer itself was trained; everywhere else "
        "it was frozen: it was run once over the texts, and its features were stored."
    )


def _training(n_trained: int, n_rows: int, *, has_choice: bool) -> str:
    if not n_trained:
        untrained = "The methods below turn them into vectors; nothing was trained."
        if not has_choice:
            return untrained
        return (
            f"{untrained} Layers, where there was a choice, were chosen on dev, or by the evaluation that "
            "'layers_by' names, and test was scored once, at the end."
        )
    chosen = (
        "Layer, hyper-parameters and epoch, where there was a choice, were chosen on dev, and test was "
        "scored once, at the end."
    )
    if n_trained == n_rows:
        return f"Everything in the table was trained on a train split. {chosen}"
    n_others = n_rows - n_trained
    return (
        f"Of the {n_rows} rows of the table {n_trained} {_were(n_trained)} trained on a train split, and "
        f"{n_others} {_were(n_others)} not. {chosen}"
    )


def _were(n: int) -> str:
    return "was" if n == 1 else "were"
