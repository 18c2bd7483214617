"""Files of multiple-choice questions, as their authors publish them and as tables.

Choices may be a list of texts; lists of labels and texts (Hugging Face's form); a list of objects with a
label and a text (AI2's form, inside an object `question` with its `stem`); or an object from label to text
(MedQA's `options`). In csv and tsv they are JSON in a cell.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.corpus.data_files import data_files
from permafrost.stages.corpus.json_files import JsonFile
from permafrost.stages.corpus.names import OWN_ID, find_column
from permafrost.stages.corpus.table_files import column_names, file_format, read_columns
from permafrost.stages.corpus.text_format import USUAL
from permafrost.stages.corpus.values import id_of
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

QUESTION = ("question", "question_stem", "stem", "query")
CHOICES = ("choices", "options", "answers", "candidates")
LABEL = ("label", "answerkey", "answer_idx", "answer_index", "correct", "answer")
"""The first one that a file has: MedQA's `answer` is the text of the choice that `answer_idx` names."""
IDS = (*reversed(OWN_ID), "qid", "question_id")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")
"""As csv has whole numbers where others of the column are missing."""


class _NoAnswer(ValueError):
    """A label that stands for none."""


@dataclass(frozen=True)
class Question:
    """A question with its choices."""

    key: str
    """Its id; the number of its row if the file has none."""
    text: str
    choices: tuple[str, ...]
    label: int
    """Number of the right choice."""
    gold: str | None
    """The fact it was made from, if that was asked for."""


@dataclass(frozen=True)
class QuestionColumns:
    """Names of columns; one that has its default may also have another usual name."""

    question: str = QUESTION[0]
    choices: str = CHOICES[0]
    label: str = LABEL[0]
    key: str = IDS[0]
    gold: str | None = None


def read_questions(path: Path, columns: QuestionColumns, *, needs_ids: bool) -> list[Question]:
    """The questions of a file, in its order.

    Args:
        path: of the file: parquet, jsonl, csv or tsv.
        columns: that are read.
        needs_ids: whether a file without ids is refused.

    Raises:
        InputError: there is no such file or column, there are no questions, or one has a blank text, fewer
            than two choices, another number of choices than the first one, or no right choice; says which. Or
            facts are asked for, and all are blank.
    """
    rows = list(_rows(path, columns))
    where = str(path)
    if not rows:
        raise InputError(f"{where} has no questions; give at least one")
    available = list(rows[0])
    names = _names(columns, rows[0], where, needs_ids=needs_ids)
    questions: list[Question] = []
    for number, row in enumerate(rows, start=1):
        try:
            questions.append(_question(row, names, number))
        except _NoAnswer as error:
            raise InputError(_unanswered(rows, names, number, where)) from error
        except ValueError as error:
            raise InputError(f"row {number} of {where} {error}") from error
        except KeyError as error:
            raise InputError(
                f"row {number} of {where} has no {error}, but row 1 has {', '.join(map(quoted, available))}; "
                "repair the row"
            ) from error
        if len(questions[-1].choices) != len(questions[0].choices):
            raise InputError(
                f"row {number} of {where} has {len(questions[-1].choices)} choices, row 1 has "
                f"{len(questions[0].choices)}; all questions need the same number, so repair the row"
            )
    if columns.gold is not None and not any(question.gold for question in questions):
        raise InputError(
            f"no row of {where} has a fact in {quoted(columns.gold)}; name the column that has them, or "
            "leave with_facts out"
        )
    return questions


def _names(
    columns: QuestionColumns, first: Mapping[str, Any], where: str, *, needs_ids: bool
) -> dict[str, str]:
    """The columns that are there, by role."""
    available = list(first)
    question = find_column("question", columns.question, QUESTION, available, where)
    names = {"question": question}
    if not isinstance(first[question], Mapping):  # AI2's holds its choices
        names["choices"] = find_column("choices", columns.choices, CHOICES, available, where)
    names["label"] = _first_of(columns.label, LABEL, "label", available, where)
    has_ids = columns.key in available or any(name.casefold() in IDS for name in available)
    if needs_ids or columns.key != IDS[0] or has_ids:
        names["key"] = _first_of(columns.key, IDS, "id", available, where)
    if columns.gold is not None:
        names["gold"] = find_column("column", columns.gold, (columns.gold,), available, where)
    return names


def _first_of(
    given: str, usual: Sequence[str], field: str, available: Sequence[str], where: str
) -> str:
    """As `find_column`, but of several usual names the first one in `usual` counts."""
    if given == usual[0]:
        by_name = {name.casefold(): name for name in reversed(available)}
        if found := [by_name[name] for name in usual if name in by_name]:
            return found[0]
    return find_column(field, given, usual, available, where)


def _question(row: Mapping[str, Any], names: Mapping[str, str], number: int) -> Question:
    asked = row[names["question"]]
    if "choices" in names:
        text, given = asked, row[names["choices"]]
    elif isinstance(asked, Mapping):
        text, given = asked.get("stem"), asked.get("choices")
    else:
        raise ValueError(f"has {quoted(asked)} as its question, expected an object as in row 1")
    labels, choices = _choices(given)
    key = str(number)
    if "key" in names:
        if row[names["key"]] is None:
            raise ValueError(f"has no id in {quoted(names['key'])}; give it one")
        key = id_of(row[names["key"]], names["key"])
    gold = row[names["gold"]] if "gold" in names else None
    if gold is not None and not isinstance(gold, str):
        raise ValueError(
            f"has {quoted(gold)} as its fact in {quoted(names['gold'])}, expected text"
        )
    return Question(
        key,
        _text(text, "question"),
        choices,
        _right(row[names["label"]], labels, choices, names["label"]),
        (gold or "").strip() or None,
    )


def _unanswered(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str], number: int, where: str
) -> str:
    """What is said of the first row without an answer."""
    name, row = names["label"], rows[number - 1]
    n_hidden = sum(_is_no_label(one.get(name)) for one in rows)
    if n_hidden == len(rows):
        return (
            f"no row of {where} has a label in {quoted(name)} (row {number} has {quoted(row[name])}): "
            "the labels of this split are hidden, so use a split that has them (in-house splits: "
            "inhouse_train_qids)"
        )
    whose = f", the question {quoted(row[names['key']])}," if "key" in names else ""
    return (
        f"row {number} of {where}{whose} has no answer: its label in {quoted(name)} is {quoted(row[name])} "
        f"({n_hidden} such of {len(rows)} rows); fill it or remove the row"
    )


def _choices(given: Any) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Their labels, if they have any, and their texts."""
    if isinstance(given, str) and given.lstrip()[:1] in ("[", "{"):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"has choices that are no JSON ({error}): {quoted(given)}") from error
    labels: list[Any] | None = None
    if isinstance(given, Mapping) and set(given) == {"label", "text"}:
        labels, texts = given["label"], given["text"]
    elif isinstance(given, Mapping):
        # In parquet every row has the keys of all.
        there = {label: text for label, text in given.items() if text is not None}
        labels, texts = list(there), list(there.values())
    elif isinstance(given, list) and given and all(isinstance(c, Mapping) for c in given):
        labels, texts = [c.get("label") for c in given], [c.get("text") for c in given]
    else:
        texts = given
    if isinstance(texts, str):
        raise ValueError(
            f"has the text {quoted(texts)} as its choices, expected a list; in csv and tsv write it as JSON, "
            'such as ["a", "b"]'
        )
    if not isinstance(texts, list) or len(texts) < 2:
        raise ValueError(
            f"has {quoted(given)} as its choices, expected two or more; repair or remove it"
        )
    names = None if labels is None else tuple(str(label).strip() for label in labels)
    if names is not None and len({*names}) != len(texts):
        raise ValueError(
            f"has the labels {quoted(labels)} for {len(texts)} choices; give each a label of its own"
        )
    return names, tuple(_text(choice, "choice") for choice in texts)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"has {quoted(value)} as a {what}, expected text; fill it or remove the row"
        )
    return value.strip()


def _right(value: Any, labels: Sequence[str] | None, choices: Sequence[str], name: str) -> int:
    """The number of the right choice, from its label, its letter, its number or its text.

    Where labels are numbers, a number is a label. Without labels a letter, or a number in text, as all
    are in csv, may also be the text of a choice. There `1.0` is 1, too.

    Raises:
        ValueError: it is none, or one of several; a `_NoAnswer` if it stands for no answer.
    """
    n = len(choices)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_given = isinstance(value, str | int) and not isinstance(value, bool)
    text = str(value).strip() if is_given else ""
    names = list(labels or _LETTERS[:n])
    written, text = text, text if text in names else _whole(text)
    same: list[int] = []
    if isinstance(value, str):
        said = written if written in choices else text
        same = [at for at, choice in enumerate(choices) if choice == said]
    if text in names:
        at = names.index(text)
        if labels is None and same and at not in same:
            raise ValueError(
                f"has the label {quoted(value)} in {quoted(name)}, which is the text of choice {same[0]} and "
                f"the letter of choice {at}, {quoted(choices[at])}, counted from 0; write the number (0 to "
                f"{n - 1})"
            )
        return at
    is_index = not any(map(str.isdecimal, names)) and (labels is None or isinstance(value, int))
    number = int(text) if is_index and text.isdecimal() and len(text) < 4 else n
    if number < n and same and number not in same:
        raise ValueError(
            f"has the label {quoted(value)} in {quoted(name)}, which is the text of choice {same[0]} and the "
            f"number of choice {number}, {quoted(choices[number])}, counted from 0; write the letter "
            f"({', '.join(names)})"
        )
    if number < n:
        return number
    if len(same) == 1:
        return same[0]
    if same:
        raise ValueError(
            f"has the label {quoted(value)} in {quoted(name)}, which is the text of the choices "
            f"{', '.join(map(str, same))}, counted from 0; write the letter ({', '.join(names)})"
        )
    if _is_no_label(value):
        raise _NoAnswer
    known = ", ".join(labels) if labels else f"0 to {n - 1}, {', '.join(_LETTERS[:n])}"
    raise ValueError(
        f"has the label {quoted(value)} in {quoted(name)}, which is none of its {n} choices ({known}); "
        "correct it or remove the row"
    )


def _is_no_label(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value) or value == -1
    return value is None or (
        isinstance(value, str | int) and _whole(str(value).strip()) in ("", "-1")
    )


def _whole(text: str) -> str:
    """A whole number without its `.0`; any other text unchanged."""
    return found[1] if (found := _WHOLE.fullmatch(text)) else text


def _rows(path: Path, columns: QuestionColumns) -> Iterator[dict[str, Any]]:
    match file_format(path):
        case "jsonl" | "json" as kind:
            for part in data_files(path):
                yield from _objects(part, kind)
        case "parquet":
            for part in data_files(path):
                try:
                    with pq.ParquetFile(part, memory_map=True) as file:
                        yield from file.read().to_pylist()
                except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                    raise InputError(
                        f"{part} cannot be read as .parquet: {error}; repair the file"
                    ) from error
        case "csv" | "tsv":
            names = column_names(path)
            table = read_columns(path, names, [])
            for row in table.to_pylist():
                yield {name: _decoded(value, path) for name, value in row.items()}
        case other:
            raise InputError(
                f"{path} is a file of the format {other}, which has no columns; give parquet, jsonl or csv"
            )


def _objects(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    try:
        for number, line in enumerate(JsonFile(path, kind, USUAL).lines(), start=1):
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError(f"row {number} is {quoted(value)}")
            yield value
    except InputError:
        raise
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read as .jsonl: {error}; jsonl is one object per line, in UTF-8"
        ) from error


def _decoded(value: bytes, path: Path) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not valid UTF-8: {error}; save it as UTF-8") from error
