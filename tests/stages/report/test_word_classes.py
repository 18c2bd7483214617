"""Parts of speech told by the list, in each tokenizer's notation, and function against content words."""

import numpy as np
import pytest

from permafrost.stages.report.cells import read_results
from permafrost.stages.report.token_summary import (
    TaskSummary,
    parts_of_speech_table,
    summaries,
    summary_table,
    token_weights_table,
    word_classes_table,
)
from permafrost.stages.report.tokens import Token, read_tokens, read_weights, readable
from permafrost.stages.report.word_classes import (
    LISTED,
    PART_NAMES,
    PARTS,
    by_class,
    by_part,
    part_of,
    parts_of,
    relative,
)
from tests.stages.report.fake_results import Grid

BERT = [
    "[CLS]",
    "the",
    "genome",
    "##s",
    "that",
    "were",
    "un",
    "##able",
    ",",
    "it",
    "'",
    "s",
    "[SEP]",
]
FUNCTION = {"the", "that", "were", "it", "s"}


def named(tokens: list[Token], notation) -> list[str | None]:
    parts = parts_of(readable(tokens, notation))
    return [None if part < 0 else PARTS[part] for part in parts]


def found_in(grid: Grid) -> TaskSummary:
    weights = read_weights(read_results(grid.cells))
    (found,) = summaries(summary_table(weights, read_tokens(weights, grid.text_tokens)))
    return found


def test_a_word_of_several_tokens_is_one_word_and_special_tokens_are_of_no_part():
    tokens = [Token(t, t.startswith("[")) for t in BERT]
    assert named(tokens, "wordpiece") == [
        *(None, "DET", "OPEN", "OPEN", "PRON", "AUX", "OPEN", "OPEN"),
        *("PUNCT", "PRON", "PUNCT", "PART", None),
    ]
    weights = np.arange(1.0, len(BERT) + 1) / 91
    parts = by_part(weights, parts_of(readable(tokens, "wordpiece")))
    function, content = by_class(parts)
    assert function * 91 == pytest.approx(sum(i + 1 for i, t in enumerate(BERT) if t in FUNCTION))
    # genome, ##s, un, ##able
    assert content * 91 == pytest.approx(3 + 4 + 7 + 8)
    assert parts[PARTS.index("PUNCT")] * 91 == pytest.approx(9 + 11)


def test_a_function_word_that_a_word_begins_with_is_part_of_it():
    tokens = [Token(t) for t in ("ĠThe", "Ġin", "put", "Ġof", "Ġ2", "0")]
    assert named(tokens, "bytes") == ["DET", "OPEN", "OPEN", "ADP", "NUM", "NUM"]


def test_a_contraction_in_one_word_is_what_stands_before_its_apostrophe():
    byte_level = [Token(t) for t in ("ĠDon", "'t", "Ġit", "'s", "ĠJohn", "'s")]
    assert named(byte_level, "bytes") == ["AUX", "AUX", "PRON", "PRON", "OPEN", "OPEN"]
    split = [Token(t) for t in ("don", "'", "t")]
    assert named(split, "wordpiece") == ["AUX", "PUNCT", "PART"]
    assert part_of("don\N{RIGHT SINGLE QUOTATION MARK}t") == "AUX"


def test_a_word_that_ends_in_a_contracted_not_is_an_auxiliary_verb():
    assert {part_of(f"{stem}n't") for stem in ("wo", "ca", "sha", "ai", "might", "Do")} == {"AUX"}
    assert part_of("n't") == "PART"
    assert named([Token(t) for t in ("ĠWon", "'t", "Ġwon")], "bytes") == ["AUX", "AUX", "OPEN"]


def test_words_of_other_languages_that_look_like_english_ones_have_their_class():
    words = ("d'une", "was", "haus", "chaise")
    assert [part_of(word) for word in words] == ["AUX", "AUX", "OPEN", "OPEN"]


@pytest.mark.parametrize(
    ("part", "words"),
    {
        "DET": "the every THIS most",
        "PRON": "that what which her myself there one",
        "ADP": "of like as before up",
        "CCONJ": "and or",
        "SCONJ": "because than whereas",
        "AUX": "is had doing must don isn shan ain",
        "PART": "to not n't",
        "ADV": "so when how very never",
        "NUM": "2020 1,000 3.5 10:30 seven",
        "OPEN": "person horse maximum number unique human riding quickly 3d won",
    }.items(),
)
def test_each_word_has_the_part_that_the_page_says(part: str, words: str):
    assert {word: part_of(word) for word in words.split()} == dict.fromkeys(words.split(), part)


def test_the_list_has_single_words_in_lower_case_each_in_one_class():
    assert all(word == word.lower() and " " not in word for word in LISTED)
    assert set(LISTED.values()) == set(PARTS) - {"OPEN", "PUNCT"}
    assert [*PART_NAMES] == [*PARTS]


def test_no_word_is_listed_twice():
    from permafrost.stages.report import word_classes

    words = " ".join(word_classes._LISTS.values()).split()
    assert len(words) == len(set(words))


def test_relative_weights_are_one_for_a_mean_and_undefined_without_tokens():
    uniform = np.array([0.4, 0.5])
    assert relative(uniform, uniform).tolist() == [1, 1]
    assert relative(np.array([0.2, 0.7]), uniform).tolist() == pytest.approx([0.5, 1.4])
    without = relative(np.array([0.0, 0.9]), np.array([0.0, 0.9]))
    assert np.isnan(without[0])
    assert without[1] == 1


def with_function_words(grid: Grid) -> Grid:
    """Words of each text are made a determiner, a preposition and another word in turn."""
    cycle = ("the", "of", "zq")
    grid.tokens = {
        d: [t if t.startswith("[") else cycle[i % 3] for i, t in enumerate(tokens)]
        for d, tokens in grid.tokens.items()
    }
    return grid


def test_the_table_has_the_weights_of_both_classes_by_method(make_grid):
    grid = with_function_words(make_grid(tasks=["t"], methods=["mean", "scorer"], controls=[]))
    found = found_in(grid)
    by_method = {row[0]: row[1:] for row in word_classes_table(found).rows}
    function, content = (100 * share for share in found.classes)
    assert by_method["mean"] == (f"{function:.1f}", f"{content:.1f}", "1.00", "1.00", "1.00")
    (scorer,) = [m for m in found.methods if m.method == "scorer"]
    a, b = scorer.classes / found.classes
    shares = tuple(f"{100 * share:.1f}" for share in scorer.classes)
    assert by_method["scorer"] == (*shares, f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}")
    assert a != pytest.approx(b), "weights that tell nothing apart would test nothing"


def test_the_table_by_part_of_speech_has_a_row_for_each_that_occurs(make_grid):
    grid = with_function_words(make_grid(tasks=["t"], methods=["mean", "scorer"], controls=[]))
    found = found_in(grid)
    table = parts_of_speech_table(found)
    assert table.header == ("part of speech", "tokens, × 100", "mean", "scorer")
    rows = {row[0]: row[1:] for row in table.rows}
    assert [*rows] == [PART_NAMES[part] for part in ("DET", "ADP", "OPEN")]
    (scorer,) = [m for m in found.methods if m.method == "scorer"]
    for part in ("DET", "ADP", "OPEN"):
        at = PARTS.index(part)
        share = found.parts[at]
        expected = (f"{100 * share:.1f}", "1.00", f"{scorer.parts[at] / share:.2f}")
        assert rows[PART_NAMES[part]] == expected
    assert len({row[2] for row in rows.values()}) > 1, "else it would test nothing"
    assert found.classes[0] == pytest.approx(
        sum(found.parts[PARTS.index(p)] for p in ("DET", "ADP"))
    )


def test_texts_without_function_words_have_no_such_tables(make_grid):
    grid = make_grid(tasks=["t"], controls=[])
    grid.tokens = {d: ["[CLS]", *["zq"] * (len(t) - 1)] for d, t in grid.tokens.items()}
    found = found_in(grid)
    assert word_classes_table(found).rows == ()
    assert parts_of_speech_table(found).rows == ()
    assert token_weights_table(found).rows
