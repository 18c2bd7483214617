"""The forms in which files of multiple-choice questions are published."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.graphs.question_files import Question, QuestionColumns, read_questions
from permafrost.storage.errors import InputError

ROWS = [("q1", "Where do birds sit?", ["tree", "sea"], 0), ("q2", "What barks?", ["cat", "dog"], 1)]
WANTED = [Question(key, text, tuple(choices), label, None) for key, text, choices, label in ROWS]
LETTERS = "AB"


def lines(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "q.jsonl"


def parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), folder / "q.parquet")
    return folder / "q.parquet"


def plain() -> list[dict[str, Any]]:
    return [{"id": k, "question": t, "choices": c, "label": n} for k, t, c, n in ROWS]


def ai2() -> list[dict[str, Any]]:
    """OpenBookQA's and CommonsenseQA's own files."""
    return [
        {
            "id": k,
            "question": {
                "stem": t,
                "question_concept": "x",
                "choices": [{"label": a, "text": b} for a, b in zip(LETTERS, c, strict=True)],
            },
            "answerKey": LETTERS[n],
        }
        for k, t, c, n in ROWS
    ]


def medqa() -> list[dict[str, Any]]:
    return [
        {
            "id": k,
            "question": t,
            "answer": c[n],
            "options": dict(zip(LETTERS, c, strict=True)),
            "meta_info": "step1",
            "answer_idx": LETTERS[n],
        }
        for k, t, c, n in ROWS
    ]


def hugging_face() -> list[dict[str, Any]]:
    return [
        {
            "id": k,
            "question_stem": t,
            "choices": {"label": list(LETTERS), "text": c},
            "answerKey": LETTERS[n],
        }
        for k, t, c, n in ROWS
    ]


@pytest.mark.parametrize("form", [plain, ai2, medqa, hugging_face])
@pytest.mark.parametrize("write", [lines, parquet])
def test_every_form_gives_the_same_questions(tmp_path: Path, form: Any, write: Any) -> None:
    assert read_questions(write(tmp_path, form()), QuestionColumns(), needs_ids=True) == WANTED


def test_tables_hold_choices_as_json(tmp_path: Path) -> None:
    path = tmp_path / "q.tsv"
    cells = [[k, t, json.dumps(c), str(n)] for k, t, c, n in ROWS]
    rows = ["qid\tquestion\toptions\tlabel", *("\t".join(row) for row in cells)]
    path.write_text("\n".join(rows) + "\n")
    assert read_questions(path, QuestionColumns(), needs_ids=True) == WANTED


@pytest.mark.parametrize("label", ["B", " B ", "dog", 1, 1.0, "1"])
def test_the_right_choice_may_be_a_letter_a_number_or_its_text(tmp_path: Path, label: Any) -> None:
    rows = [{"question": "What barks?", "choices": ["cat", "dog"], "label": label}]
    (question,) = read_questions(lines(tmp_path, rows), QuestionColumns(), needs_ids=False)
    assert (question.label, question.key) == (1, "1")


def test_numbers_that_label_choices_are_labels(tmp_path: Path) -> None:
    choices = [{"label": "1", "text": "cat"}, {"label": "2", "text": "dog"}]
    rows = [{"question": "What barks?", "choices": choices, "answerKey": "2"}]
    (question,) = read_questions(lines(tmp_path, rows), QuestionColumns(), needs_ids=False)
    assert question.label == 1


@pytest.mark.parametrize(("labels", "right"), [([1, 2], 2), (["1", "2"], 2), (["A", "B"], 1)])
def test_a_number_is_a_label_where_labels_are_numbers(
    tmp_path: Path, labels: list[Any], right: int
) -> None:
    choices = {"label": labels, "text": ["cat", "dog"]}
    rows = [{"question": "What barks?", "choices": choices, "answerKey": right}]
    (question,) = read_questions(lines(tmp_path, rows), QuestionColumns(), needs_ids=False)
    assert question.label == 1
    rows[0]["answerKey"] = 0 if right == 2 else 2
    with pytest.raises(InputError, match=r"none of its 2 choices \("):
        read_questions(lines(tmp_path, rows), QuestionColumns(), needs_ids=False)


def in_csv(folder: Path, choices: list[str], label: str) -> Path:
    with (folder / "q.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("question", "choices", "label"), ("How many?", json.dumps(choices), label)]
        )
    return folder / "q.csv"


def test_a_letter_that_is_a_choice_and_the_letter_of_another_is_refused(tmp_path: Path) -> None:
    row = {"question": "Which group?", "label": "A", "choices": ["O", "AB", "A"]}
    with pytest.raises(
        InputError, match=r"row 1 .* text of choice 2 and the letter of choice 0, 'O', .* number"
    ):
        read_questions(lines(tmp_path, [row]), QuestionColumns(), needs_ids=False)
    for change, right in (
        ({"label": 2}, 2),
        ({"label": "B"}, 1),
        ({"label": "O"}, 0),
        ({"choices": ["A", "B", "O"]}, 0),
        ({"choices": {"label": ["K", "L", "M"], "text": ["O", "AB", "A"]}}, 2),
    ):
        path = lines(tmp_path, [row | change])
        (found,) = read_questions(path, QuestionColumns(), needs_ids=False)
        assert found.label == right


def test_a_number_in_text_that_is_a_choice_and_the_number_of_another_is_refused(
    tmp_path: Path,
) -> None:
    path = in_csv(tmp_path, ["1", "0", "7"], "1")
    with pytest.raises(
        InputError, match=r"row 1 .* the text of choice 0 and the number of choice 1, '0'"
    ):
        read_questions(path, QuestionColumns(), needs_ids=False)
    path = in_csv(tmp_path, ["1.0", "1"], "1.0")
    with pytest.raises(InputError, match="the text of choice 0 and the number of choice 1, '1'"):
        read_questions(path, QuestionColumns(), needs_ids=False)
    for choices, label, right in (
        (["0", "1"], "1", 1),
        (["2", "4"], "1", 1),
        (["2", "4"], "4", 1),
        (["2", "4"], "4.0", 1),
        (["2.0", "4.0"], "4.0", 1),
    ):
        path = in_csv(tmp_path, choices, label)
        assert read_questions(path, QuestionColumns(), needs_ids=False)[0].label == right
    # A number that is no text is the number of a choice.
    rows = [{"question": "How many?", "choices": ["1", "0", "7"], "label": 1}]
    assert read_questions(lines(tmp_path, rows), QuestionColumns(), needs_ids=False)[0].label == 1


@pytest.mark.parametrize(
    ("label", "says"),
    [
        ("", "labels of this split are hidden"),
        ("-1", "are hidden"),
        ("-1.0", "are hidden"),
        ("AB", "'AB' .* correct it"),
    ],
)
def test_what_is_no_letter_is_refused_with_advice(tmp_path: Path, label: str, says: str) -> None:
    with pytest.raises(InputError, match=f"row 1 .*{says}"):
        read_questions(in_csv(tmp_path, ["a", "b"], label), QuestionColumns(), needs_ids=False)


def test_only_where_no_row_has_a_label_the_split_is_said_to_hide_them(tmp_path: Path) -> None:
    for hidden in ([None, ""], [-1, -1.0], [math.nan, None]):
        rows = [row | {"label": label} for row, label in zip(plain(), hidden, strict=True)]
        with pytest.raises(InputError, match=r"no row of .*: the labels of this split are hidden"):
            read_questions(lines(tmp_path, rows), QuestionColumns(), needs_ids=False)


def test_labels_of_csv_may_be_whole_numbers_as_pandas_writes_them(tmp_path: Path) -> None:
    table = pd.DataFrame({"question": ["a?", "b?", "c?"], "choices": ['["x", "y"]'] * 3})
    path = tmp_path / "q.csv"
    table.assign(label=[1.0, 0.0, 1.0]).to_csv(path, index=False)
    found = read_questions(path, QuestionColumns(), needs_ids=False)
    assert [question.label for question in found] == [1, 0, 1]
    table.assign(label=[1.0, None, 1.0]).to_csv(path, index=False)
    with pytest.raises(
        InputError, match=r"row 2 of \S+ has no answer: .* is '' \(1 such of 3 rows"
    ):
        read_questions(path, QuestionColumns(), needs_ids=False)


@pytest.mark.parametrize("write", [lines, parquet])
def test_whole_numbers_in_a_column_of_floats_are_ids(tmp_path: Path, write: Any) -> None:
    rows = [row | {"id": number} for row, number in zip(plain(), (7.0, 8.5), strict=True)]
    found = read_questions(write(tmp_path, rows), QuestionColumns(), needs_ids=True)
    assert [question.key for question in found] == ["7", "8.5"]


def test_a_gold_fact_is_read_where_it_is_asked_for(tmp_path: Path) -> None:
    path = lines(tmp_path, [row | {"fact1": "birds sit"} for row in plain()])
    questions = read_questions(path, QuestionColumns(gold="fact1"), needs_ids=False)
    assert [q.gold for q in questions] == ["birds sit"] * 2
    path = lines(tmp_path, [row | {"fact1": " birds sit.\n"} for row in plain()])
    questions = read_questions(path, QuestionColumns(gold="fact1"), needs_ids=False)
    assert [q.gold for q in questions] == ["birds sit."] * 2, "no space around it"
    for facts, found in (((" ", "birds sit"), [None, "birds sit"]), ((" ", None), None)):
        rows = [row | {"fact1": fact} for row, fact in zip(plain(), facts, strict=True)]
        path = lines(tmp_path, rows)
        if found is None:
            with pytest.raises(InputError, match=r"no row of .* has a fact in 'fact1'; name the"):
                read_questions(path, QuestionColumns(gold="fact1"), needs_ids=False)
        else:
            some = read_questions(path, QuestionColumns(gold="fact1"), needs_ids=False)
            assert [q.gold for q in some] == found
    with pytest.raises(InputError, match="no column 'fact2'"):
        read_questions(path, QuestionColumns(gold="fact2"), needs_ids=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label": 2}, "row 2 .* has the label 2 in 'label', which is none of its 2 choices"),
        (
            {"label": -1},
            r"row 2 .*, the question 'q2', has no answer: .* 'label' is -1 \(1 such of 2",
        ),
        ({"label": None}, "row 2 .* 'label' is None .* fill it or remove the row"),
        ({"label": ""}, "row 2 .* has no answer: .* is '' "),
        ({"label": math.nan}, "row 2 .* has no answer: .* is nan "),
        ({"label": "C"}, r"none of its 2 choices \(0 to 1, A, B\)"),
        ({"label": True}, "has the label True"),
        ({"choices": ["a", "b", "c"]}, "row 2 .* has 3 choices, row 1 has 2"),
        ({"choices": ["a"]}, "row 2 .* expected two or more"),
        ({"choices": None}, "row 2 .* has None as its choices"),
        ({"choices": ["a", " "]}, "row 2 .* has ' ' as a choice"),
        ({"choices": ["a", 3]}, "row 2 .* has 3 as a choice"),
        ({"choices": "[a"}, "choices that are no JSON"),
        ({"choices": "cat; dog"}, r"the text 'cat; dog' as .* JSON, such as \[\"a\", \"b\"\]"),
        ({"choices": ["a", "a"], "label": "a"}, r"the text of the choices 0, 1, .* \(A, B\)"),
        ({"choices": {"label": ["A", "A"], "text": ["a", "b"]}}, "a label of its own"),
        ({"question": ""}, "row 2 .* has '' as a question"),
        ({"question": {"stem": "x"}}, "row 2 .* as a question, expected text"),
        ({"id": None}, "row 2 .* has no id"),
        ({"id": 2.0**53}, "row 2 .* has the id 9007199254740992 in column 'id', .* Int64 or text"),
    ],
)
def test_a_faulty_question_is_refused_with_its_row(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    rows = plain()
    rows[1] |= change
    with pytest.raises(InputError, match=says):
        read_questions(lines(tmp_path, rows), QuestionColumns(), needs_ids=False)


def test_faulty_files_are_refused(tmp_path: Path) -> None:
    lacking = plain()
    del lacking[1]["choices"]
    no_ids = [{name: row[name] for name in ("question", "choices", "label")} for row in plain()]
    for rows, says in ((lacking, "row 2 .* has no 'choices'"), (no_ids, "no column 'id'")):
        with pytest.raises(InputError, match=says):
            read_questions(lines(tmp_path, rows), QuestionColumns(), needs_ids=True)
    mixed = [ai2()[0], plain()[1] | {"answerKey": "A"}]
    with pytest.raises(InputError, match=r"row 2 .* expected an object as in row 1"):
        read_questions(lines(tmp_path, mixed), QuestionColumns(), needs_ids=True)
    path = tmp_path / "q.jsonl"
    for text, says in (
        ("[1]\n", "row 1 is"),
        ("{\n", "cannot be read as .jsonl"),
        ("\n", "no questions"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=says):
            read_questions(path, QuestionColumns(), needs_ids=False)
    (tmp_path / "q.txt").write_text("where?\n")
    with pytest.raises(InputError, match="has no columns"):
        read_questions(tmp_path / "q.txt", QuestionColumns(), needs_ids=False)


def test_a_table_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path, plain())
    whole = path.read_bytes()
    assert b"birds" in whole
    path.write_bytes(whole.replace(b"birds", b"b\xefrds"))
    with pytest.raises(InputError, match=r"cannot be read as .parquet: 'utf-8' codec"):
        read_questions(path, QuestionColumns(), needs_ids=False)
