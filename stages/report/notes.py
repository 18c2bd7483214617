"""Notes under the results: the meaning of the marks, what was averaged, and caveats about the scores.

One caveat names fits that may have stopped too early: the best epoch on dev is the last one, or the training
loss is still falling markedly and few epochs have passed since the best. A loss that falls long after dev
has stopped improving is not a sign of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.metrics.records import TextsInTrain
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.controls import untested_controls
from permafrost.stages.report.convergence import unconverged_note, unfinished_note
from permafrost.stages.report.costs import Extraction
from permafrost.stages.report.entries import DASH, MOST_NAMED, TIED, hundredths, share, some
from permafrost.stages.report.learning import LearningCurve
from permafrost.stages.report.paired import LEAST_TASKS, behind
from permafrost.stages.report.standing import Standing, standings
from permafrost.stages.report.tables import (
    Average,
    Column,
    ResultsTable,
    averages,
    scored_differently,
)
from permafrost.storage.quoting import quoted

ONE_EXAMPLE = 0.003
"""A test set is small if one example changes the metric by more than this."""
HALF_WIDTH = 0.03
"""A test set is small if half the width of an interval exceeds this."""
FEW_SEEDS = 5
"""With fewer, estimating the spread over seeds makes an interval more than 1.4 times as wide as a known
spread would."""
_MEANS_OF_EXAMPLES = ("accuracy", "mrr")


def annotated(
    table: ResultsTable,
    results: Sequence[CellResult],
    config: ReportConfig,
    curves: Sequence[LearningCurve] = (),
    extractions: Sequence[Extraction] = (),
    *,
    named_metrics: Mapping[str, str] | None = None,
) -> ResultsTable:
    """The table with intervals, comparisons, means over tasks, and notes.

    `curves` are the learning curves of the trained methods, for a note on fits that may be unfinished;
    `extractions` the runs of the backbone, for a note on texts that it did not read to the end;
    `named_metrics` the experiment's `metrics`, for what to write where methods have different ones.

    Raises:
        CorruptDataError: a file of predictions cannot be read.
    """
    columns, bootstrap = table.columns, config.bootstrap
    by_column = standings(results, [(c.task, c.metric) for c in columns], bootstrap)
    is_averaged = config.averages != "none" and config.x_axis.has_averages
    means = averages(columns, config.averages) if is_averaged else ()
    resampled = replace(table, standings=by_column, alpha=bootstrap.alpha)
    return replace(
        resampled,
        averages=tuple(replace(a, behind=behind(resampled, a, bootstrap)) for a in means),
        notes=(
            *unfinished_note(curves, [row.method for row in table.of_role("control")]),
            *unconverged_note(results),
            *marks_note(by_column, bootstrap),
            *few_shot_note(columns, by_column),
            *few_seeds_note(
                results, by_column, is_over_tasks=any(len(a.columns) >= LEAST_TASKS for a in means)
            ),
            *metrics_note(table, named_metrics or {}),
            *(averages_note(columns, means) if is_averaged else ()),
            *untested_controls_notes(table),
            *small_sets_note(resampled, bootstrap),
            *one_class_note(columns),
            *overlap_note(columns, results),
            *dev_overlap_notes(columns),
            *trained_texts_note(results),
            *drawn_note(results),
            *cut_texts_note(extractions),
        ),
    )


def marks_note(standings: Sequence[Standing], config: BootstrapConfig) -> tuple[str, ...]:
    """A note on how the best of each column was compared with the others, if it was."""
    n_comparisons = sum(len(s.against_best) for s in standings)
    n_results = sum(s.n_results for s in standings)
    n_missing = n_results - sum(len(s.cells) for s in standings)
    over_seeds = (
        "metrics averaged over seeds, with other seeds drawn in each of "
        if any(s.draws_seeds for s in standings)
        else ""
    )
    notes: list[str] = []
    if n_comparisons:
        notes.append(
            f"{TIED}: the difference from the best of the column is not significant at {config.alpha:g} "
            f"(paired bootstrap over the test examples, {over_seeds}{config.n_resamples:,} resamples, "
            "two-sided; "
            f"{_counted(n_comparisons, 'comparison')}, not corrected for their number). The best "
            "is the one with the highest score on test, which favours it; nothing was chosen by these scores."
        )
    if 0 < n_missing < n_results:
        notes.append(
            f"{n_missing} of {n_results} results are not compared: the predictions behind their scores were "
            "not kept."
        )
    return tuple(notes)


def few_shot_note(columns: Sequence[Column], standings: Sequence[Standing]) -> tuple[str, ...]:
    """A note on classifications of evaluations, whose scores are means over draws of training rows."""
    tasks = [
        column.task
        for column, standing in zip(columns, standings, strict=True)
        if (column.part, column.category) == ("evaluations", "Classification")
        and standing.estimates
    ]
    if not tasks:
        return ()
    return (
        f"Intervals and tests on {some(tasks)} are for the draws of training rows "
        "that mteb makes (10, unless the task says otherwise): how much other draws would change scores is "
        "left out.",
    )


def few_seeds_note(
    results: Sequence[CellResult], standings: Sequence[Standing], *, is_over_tasks: bool = False
) -> tuple[str, ...]:
    """A note on what few seeds of trained methods can show, if anything was compared: on resamples, or means
    over tasks."""
    if not (is_over_tasks or any(s.against_best for s in standings)):
        return ()
    seeds: dict[tuple[str, str], set[int]] = {}
    for r in results:
        is_trained = r.cell.loss is not None or r.metrics.texts_in_train is not None
        if r.cell.role != "control" and r.cell.is_random and is_trained:
            seeds.setdefault((r.cell.method, r.cell.task), set()).add(r.cell.seed)
    numbers = {cell: len(of_cell) for cell, of_cell in seeds.items()}
    fewest = min(numbers.values(), default=FEW_SEEDS)
    those = some(_with_fewest(numbers))
    if fewest == 1:
        return (
            f"Only one seed of {those}: the comparisons leave out how much trainings differ; give several "
            "`seeds`.",
        )
    if fewest < FEW_SEEDS:
        which = "" if max(numbers.values()) == fewest else f" ({those})"
        return (
            f"{fewest} seeds are few{which}: where they lie far apart, only large differences can be "
            "significant.",
        )
    return ()


def _with_fewest(numbers: Mapping[tuple[str, str], int]) -> list[str]:
    """The methods with the fewest seeds; each with the tasks where it has more on others."""
    fewest = min(numbers.values(), default=0)
    named: list[str] = []
    for name in dict.fromkeys(method for method, _ in numbers):
        of_tasks = {task: n for (method, task), n in numbers.items() if method == name}
        tasks = [task for task, n in of_tasks.items() if n == fewest]
        if tasks:
            named.append(name if len(tasks) == len(of_tasks) else f"{name} on {some(tasks)}")
    return named


def metrics_note(table: ResultsTable, named: Mapping[str, str]) -> tuple[str, ...]:
    """A note on each task that is scored by one metric for some methods and by another for the others, with
    what to write; `named` are the experiment's `metrics` by task."""
    notes: list[str] = []
    for task, metrics in scored_differently(table).items():
        # Methods without training have one of the correlations, never their mean.
        possible = [one for one in metrics if one != "spearman_pearson"]
        if (metric := named.get(task)) in possible:
            of_embed = " (that of `kind: embed` is spearman unless given)"
            advice = (
                f"The experiment's `metrics` has {metric}, but a method's own `metric` wins over that"
                f"{of_embed if metric == 'pearson' else ''}: give it {metric}, too."
            )
        else:
            metric = possible[0]
            advice = (
                f"One metric for all of them: 'metrics: {{{task}: {metric}}}' in the experiment; a method's "
                f"own `metric` wins over that, so leave it out there, or give it {metric}, too."
            )
        notes.append(
            f"Methods on {task} are scored by different metrics ({', '.join(metrics)}), which cannot be "
            f"compared. {advice}"
        )
    return tuple(notes)


def averages_note(columns: Sequence[Column], averages: Sequence[Average]) -> tuple[str, ...]:
    """A note on what is averaged, or why there is no mean."""
    tasks = dict.fromkeys(c.task for c in columns)
    if len(tasks) < 2:
        return ()
    if averages:
        of = "; ".join(
            f"{a.heading}: {len(a.kinds)} kinds"
            if a.kinds
            else f"{a.heading}: {len(a.columns)} tasks"
            for a in averages
        )
        return (
            f"Means over tasks are unweighted ({of}); {DASH} where a method was not run on all of them.",
        )
    metrics = ", ".join(dict.fromkeys(c.metric for c in columns))
    return (f"There is no mean over tasks, as their metrics differ ({metrics}).",)


def small_sets_note(table: ResultsTable, config: BootstrapConfig) -> tuple[str, ...]:
    """A note on test sets that are too small to show small differences between methods, if there are any."""
    small: list[str] = []
    for place, column in enumerate(table.columns):
        methods = {row.method for row in table.of_role("method")}
        # Intervals of single seeds, as the spread over seeds does not depend on the test set.
        of_seeds = table.standings[place].cells.items() if table.standings else ()
        widest = max((i.half_width for (m, _), i in of_seeds if m in methods), default=None)
        one = 1 / column.n_test if column.metric in _MEANS_OF_EXAMPLES and column.n_test else 0.0
        if one <= ONE_EXAMPLE and (widest is None or widest <= HALF_WIDTH):
            continue
        worth = f" of {100 * one:.2f} points" if one else ""
        # Where every answer is right no resample differs, which says nothing of the size.
        reach = f", ±{hundredths(widest)}" if widest else ""
        small.append(f"{column.heading} ({column.n_test:,} examples{worth}{reach})")
    if not small:
        return ()
    return (
        f"Too small to tell close scores apart (after the size, half of the widest {config.level:.0%} "
        f"interval): {'; '.join(small)}.",
    )


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def untested_controls_notes(table: ResultsTable) -> tuple[str, ...]:
    """Notes on the controls that are not held against chance, by the reason."""
    untested = untested_controls(table)
    unknown = [f"{c.control} on {c.task} ({c.metric})" for c in untested if c.must_be_at_chance]
    kept = [f"{c.control} on {c.task}" for c in untested if not c.must_be_at_chance]
    notes: list[str] = []
    if unknown:
        notes.append(
            f"Controls that were not tested, as what chance gives in their metric is not known: "
            f"{some(unknown)}. Tested are accuracy, MCC and other correlations."
        )
    if kept:
        notes.append(
            f"Controls that were not tested, as they need not be at chance: {some(kept)}. They keep a part "
            "of the input that may tell the answer or, on graded pairs and in evaluations, compare vectors "
            "that agree with it whatever the labels were."
        )
    return tuple(notes)


def one_class_note(columns: Sequence[Column]) -> tuple[str, ...]:
    """A note on tasks whose test examples are all of one class, if there are any."""
    alone = {
        c.task: f"{c.task} (class {quoted(name)})"
        for c in columns
        for name, portion in (c.class_balance or {}).items()
        if portion == 1.0
    }
    if not alone:
        return ()
    return (
        f"All test examples are of one class: {', '.join(alone.values())}. A method that always gives this "
        "answer is right on every one, so that scores say nothing about telling classes apart.",
    )


def overlap_note(columns: Sequence[Column], results: Sequence[CellResult]) -> tuple[str, ...]:
    """A note on tasks that share texts between train and test, if there are any, and where scores on the
    other examples are."""
    shared = {c.task: f"{c.task} {share(c.overlap)} %" for c in columns if c.overlap}
    if not shared:
        return ()
    have_clean = {r.cell.task for r in results if r.metrics.clean_test is not None}
    without = [task for task in shared if task not in have_clean]
    sentences = [f"Test examples that share a text with train: {'; '.join(shared.values())}."]
    if len(without) < len(shared):
        sentences.append(
            "Scores on the others are in report.html, and in results.parquet as clean_test."
        )
    if without:
        sentences.append(
            f"The others of {', '.join(without)} have no score of their own: they are too few, or all have "
            "one label or one prediction."
        )
    return (" ".join(sentences),)


def dev_overlap_notes(columns: Sequence[Column]) -> tuple[str, ...]:
    """Notes on tasks whose dev is no set of its own."""
    in_dev = {c.task: f"{c.task} {share(c.test_in_dev)} %" for c in columns if c.test_in_dev}
    in_train = {c.task: f"{c.task} {share(c.dev_in_train)} %" for c in columns if c.dev_in_train}
    notes: list[str] = []
    if in_dev:
        notes.append(
            f"Test examples that are in dev too: {'; '.join(in_dev.values())}. What a method chooses on dev "
            "(a layer, a setting, an epoch) it chooses on them, so that its score is too high."
        )
    if in_train:
        notes.append(
            f"Dev examples that are in train too: {'; '.join(in_train.values())}. What a trained method "
            "chooses on them it chooses by what it has learnt."
        )
    return tuple(notes)


def cut_texts_note(extractions: Sequence[Extraction]) -> tuple[str, ...]:
    """A note on texts that were longer than the backbone's input, by extraction, if there are any."""
    cut = [f"{e.label} {e.n_cut:,} of {e.n_texts:,}" for e in extractions if e.n_cut]
    if not cut:
        return ()
    return (
        f"Texts longer than `max_length`, read without their end: {'; '.join(cut[:MOST_NAMED])}"
        + (f" and {len(cut) - MOST_NAMED} more extractions" if len(cut) > MOST_NAMED else "")
        + ".",
    )


def drawn_note(results: Sequence[CellResult]) -> tuple[str, ...]:
    """A note on questions whose answer was drawn among choices with equal scores, by method and task, if
    there are any; of several seeds, the one with the most counts."""
    most: dict[tuple[str, str], tuple[int, int]] = {}
    for r in results:
        if n := r.metrics.n_drawn_test:
            name = (r.cell.method, r.cell.task)
            most[name] = max(most.get(name, (0, 0)), (n, r.metrics.n_test))
    if not most:
        return ()
    counts = [f"{method} on {task} {n:,} of {of:,}" for (method, task), (n, of) in most.items()]
    return (
        f"Test questions whose answer was drawn among choices with equal scores: {some(counts)}. On these "
        "the score is that of a guess; where `max_length` cuts texts before the choice, raise it.",
    )


def trained_texts_note(results: Sequence[CellResult]) -> tuple[str, ...]:
    """A note on how many texts of each evaluation task a method was trained or chosen on, if any such method
    was evaluated; of several methods, the one that knew most counts."""
    counts: dict[str, dict[str, TextsInTrain]] = {}
    for result in results:
        of_task = counts.setdefault(result.cell.task, {})
        for role, counted in (result.metrics.texts_in_train or {}).items():
            of_task[role] = max(of_task.get(role, counted), counted, key=lambda f: f.n_in_train)
    counts = {task: roles for task, roles in counts.items() if roles}
    if not counts:
        return ()
    shared = [task for task, roles in counts.items() if any(r.n_in_train for r in roles.values())]
    parts = [f"{task}: {_counted_roles(counts[task])}" for task in shared]
    if none := [task for task in counts if task not in shared]:
        parts.append(f"none of those of {', '.join(none)}")
    return (
        f"Texts of evaluation tasks that methods were trained or chosen on: {'; '.join(parts)}.",
    )


def _counted_roles(roles: Mapping[str, TextsInTrain]) -> str:
    nouns = {"query": "queries", "document": "documents", "text": "texts"}
    return ", ".join(
        f"{count.n_in_train:,} of {count.n_texts:,} {nouns.get(role, role)}"
        for role, count in roles.items()
    )
