"""Which texts of evaluation tasks the methods were trained on."""

from collections.abc import Mapping, Sequence

from permafrost.stages.report.cells import CellResult, TextsInTrain


def trained_texts_note(results: Sequence[CellResult]) -> tuple[str, ...]:
    """Per evaluation task, how many of its texts a method was trained on, if anything that was trained was
    evaluated; of several methods those of the one that was trained on most."""
    counts: dict[str, dict[str, TextsInTrain]] = {}
    for result in results:
        of_task = counts.setdefault(result.cell.task, {})
        for role, found in (result.metrics.texts_in_train or {}).items():
            of_task[role] = max(of_task.get(role, found), found, key=lambda f: f.n_in_train)
    counts = {task: roles for task, roles in counts.items() if roles}
    if not counts:
        return ()
    shared = [task for task, roles in counts.items() if any(r.n_in_train for r in roles.values())]
    parts = [f"{task}: {_counted(counts[task])}" for task in shared]
    if none := [task for task in counts if task not in shared]:
        parts.append(f"none of those of {', '.join(none)}")
    return (f"Texts of evaluation tasks that methods were trained on: {'; '.join(parts)}.",)


def _counted(roles: Mapping[str, TextsInTrain]) -> str:
    nouns = {"query": "queries", "document": "documents", "text": "texts"}
    return ", ".join(
        f"{found.n_in_train:,} of {found.n_texts:,} {nouns.get(role, role)}"
        for role, found in roles.items()
    )
