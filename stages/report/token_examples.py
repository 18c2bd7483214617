"""Test examples with the token weights of every method that has any."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from permafrost.stages.metrics.predictions import PREDICTIONS, written_answers
from permafrost.stages.report.cells import TaskCorpus, label_text
from permafrost.stages.report.tokens import CellWeights, Reading
from permafrost.stages.report.weighed_text import Example, Passage, WeightRow, passage_of
from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class _Outcome:
    label: float
    prediction: float


@dataclass(frozen=True)
class _Method:
    """One method's weights on a task, and its predictions on the test examples, by the indices of their
    texts."""

    weights: CellWeights
    outcomes: dict[tuple[int, ...], _Outcome]


def token_examples(
    weights: Sequence[CellWeights],
    reading: Reading,
    corpora: Mapping[str, TaskCorpus],
    n_examples: int,
) -> tuple[Example, ...]:
    """Test examples of the tasks in turn, with token weights of every method that has them on the task.

    Only examples for whose texts all of these methods have weights are shown, from the cells of the smallest
    seed. Classes alternate if the examples allow it; graded examples alternate around the median.

    Raises:
        CorruptDataError: a file of predictions cannot be read.
        InputError: a task has no corpus.
    """
    methods = {task: list(map(_method, cells)) for task, cells in _smallest_seed(weights).items()}
    queues = {task: _candidates(methods_of, reading) for task, methods_of in methods.items()}
    sides = {task: _sides(methods[task], queues[task]) for task in queues}
    examples: list[Example] = []
    last_side: object = None
    while len(examples) < n_examples and any(queues.values()):
        for task, queue in queues.items():
            if queue and len(examples) < n_examples:
                texts = next((t for t in queue if sides[task][t] != last_side), queue[0])
                queue.remove(texts)
                last_side = sides[task][texts]
                examples.append(_example(_corpus(corpora, task), methods[task], texts, reading))
    return tuple(examples)


def chosen_examples(
    task: str | None, weights: Sequence[CellWeights], reading: Reading
) -> tuple[Example, ...]:
    """Texts of a task that the report names, each with token weights of every method, by the task that it was
    trained on; of the smallest seed, as in `token_examples`.

    Args:
        task: its name.
        weights: on its texts, by the task that the method was trained on.
        reading: tokens of the texts.
    """
    examples: list[Example] = []
    for trained_on, cells in _smallest_seed(weights).items():
        for text, of_text in cells[0].texts.items():
            if of_text.digest in reading:
                read = reading[of_text.digest]
                rows = [
                    WeightRow(c.method, None, None, (passage_of(read, c.texts[text].weights),))
                    for c in cells
                ]
                heading = f"{task}, by heads trained on {trained_on}"
                examples.append(Example(heading, None, (len(read),), tuple(rows)))
    return tuple(examples)


def _corpus(corpora: Mapping[str, TaskCorpus], task: str) -> TaskCorpus:
    if task not in corpora:
        raise InputError(
            f"there are results on task {quoted(task)} but only texts of {sorted(corpora)}; pass its "
            "corpus as well"
        )
    return corpora[task]


def _smallest_seed(weights: Sequence[CellWeights]) -> dict[str, list[CellWeights]]:
    """Every method's cell of its smallest seed, by task."""
    chosen: dict[tuple[str, str], CellWeights] = {}
    for cell in weights:
        kept = chosen.setdefault((cell.task, cell.method), cell)
        if cell.seed < kept.seed:
            chosen[cell.task, cell.method] = cell
    by_task: dict[str, list[CellWeights]] = {}
    for (task, _), cell in chosen.items():
        by_task.setdefault(task, []).append(cell)
    return by_task


def _method(weights: CellWeights) -> _Method:
    answers = written_answers(weights.folder, "test")
    if answers is None:
        raise CorruptDataError(
            f"{weights.folder} holds weights of tokens but no {PREDICTIONS}; score it again"
        )
    texts = zip(*(side.tolist() for side in answers.sides), strict=True)
    outcomes = zip(answers.labels.tolist(), answers.predictions.tolist(), strict=True)
    return _Method(
        weights, {of: _Outcome(*outcome) for of, outcome in zip(texts, outcomes, strict=True)}
    )


def _candidates(methods: Sequence[_Method], reading: Reading) -> list[tuple[int, ...]]:
    """Test examples for which every method has weights and a prediction, and whose tokens are known."""

    def is_shown(method: _Method, texts: tuple[int, ...]) -> bool:
        weighted = method.weights.texts
        return texts in method.outcomes and all(
            text in weighted and weighted[text].digest in reading for text in texts
        )

    return [
        texts for texts in methods[0].outcomes if all(is_shown(method, texts) for method in methods)
    ]


def _sides(
    methods: Sequence[_Method], candidates: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], float | bool]:
    """What alternates: the class, or whether a grade is above the median."""
    labels = {texts: methods[0].outcomes[texts].label for texts in candidates}
    if all(label.is_integer() for label in labels.values()):
        return {**labels}
    middle = median(labels.values())
    return {texts: label > middle for texts, label in labels.items()}


def _example(
    corpus: TaskCorpus, methods: Sequence[_Method], texts: tuple[int, ...], reading: Reading
) -> Example:
    first = methods[0]
    label = first.outcomes[texts].label
    return Example(
        task=first.weights.task,
        label=None if corpus.task == "unlabelled" else label_text(label, corpus),
        n_tokens=tuple(len(first.weights.texts[text].weights) for text in texts),
        rows=tuple(_row(corpus, method, texts, reading) for method in methods),
    )


def _row(
    corpus: TaskCorpus, method: _Method, texts: tuple[int, ...], reading: Reading
) -> WeightRow:
    outcome = method.outcomes[texts]
    passages: list[Passage] = []
    for text in texts:
        of_text = method.weights.texts[text]
        passages.append(passage_of(reading[of_text.digest], of_text.weights))
    is_class = bool(corpus.label_names)
    return WeightRow(
        method=method.weights.method,
        prediction=_answer_text(outcome.prediction, corpus),
        correct=outcome.label == outcome.prediction if is_class else None,
        passages=tuple(passages),
    )


def _answer_text(prediction: float, corpus: TaskCorpus) -> str:
    """A prediction in words: a class, the cosine of graded pairs, or the rank of the partner."""
    match corpus.task:
        case "similarity":
            return f"cosine {label_text(prediction, corpus)}"
        case "unlabelled":
            return f"partner at rank {prediction:.0f}"
        case _:
            return label_text(prediction, corpus)
