"""The note on questions whose answer was drawn among choices with equal scores."""

from collections.abc import Callable

from permafrost.stages.report.cells import read_results
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.tables import tabulate
from tests.stages.report.fake_results import Grid


def test_drawn_answers_are_told_by_method_and_task(make_grid: Callable[..., Grid]) -> None:
    grid = make_grid()

    def told() -> list[str]:
        results = read_results(grid.cells)
        notes = annotated(tabulate(results), results, ReportConfig(title="x")).notes
        return [note.split(". ")[0] for note in notes if "drawn among" in note]

    assert told() == [], "older results do not say"
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, n_drawn_test=0)
    assert told() == []
    first, second = list(dict.fromkeys(cell.task for cell in grid.cells))
    counts = {("mean", first): 380, ("glot", second): 2}
    for i, cell in enumerate(grid.cells):
        if n := counts.get((cell.method, cell.task)):
            grid.edit_metrics(i, n_drawn_test=n + cell.seed)
    assert told() == [
        "Test questions whose answer was drawn among choices with equal scores: "
        f"mean on {first} 382 of 400, glot on {second} 4 of 400"
    ], "of the seed with the most"
