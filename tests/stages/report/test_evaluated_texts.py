"""The note that tells zero-shot from in-domain evaluations."""

from collections.abc import Callable

from permafrost.stages.report.cells import read_results
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.notes import annotated, trained_texts_note
from permafrost.stages.report.tables import tabulate
from tests.stages.report.fake_results import Grid


def test_texts_that_methods_were_trained_on_are_told_by_task(
    make_grid: Callable[..., Grid],
) -> None:
    grid = make_grid()
    assert trained_texts_note(read_results(grid.cells)) == ()
    tasks = list(dict.fromkeys(cell.task for cell in grid.cells))
    found = {
        tasks[0]: {
            "query": {"n_texts": 300, "n_in_train": 0},
            "document": {"n_texts": 5183, "n_in_train": 1534},
        },
        tasks[1]: {"text": {"n_texts": 20, "n_in_train": 0}},
    }
    fewer = {
        task: {role: {**counts, "n_in_train": 0} for role, counts in roles.items()}
        for task, roles in found.items()
    }
    for i, cell in enumerate(grid.cells):
        # The first method was not trained.
        untrained = cell.method == grid.cells[0].method
        # The second saw fewer texts than the others, as one without pretraining does.
        first_trained = cell.method == list(dict.fromkeys(c.method for c in grid.cells))[1]
        counts = fewer[cell.task] if first_trained else found[cell.task]
        grid.edit_metrics(i, texts_in_train=None if untrained else counts)
    results = read_results(grid.cells)
    expected = (
        f"Texts of evaluation tasks that methods were trained or chosen on: {tasks[0]}: 0 of 300 queries, "
        f"1,534 of 5,183 documents; none of those of {tasks[1]}."
    )
    assert trained_texts_note(results) == (expected,)
    assert expected in annotated(tabulate(results), results, ReportConfig(title="x")).notes
