"""Tokens as they are read and their kinds, for three families of tokenizers."""

import pytest

from permafrost.stages.report.tokens import ReadToken, Token, notation_of, readable


def tokens(
    *texts: str, special: tuple[str, ...] = ("[CLS]", "[SEP]", "<s>", "</s>")
) -> list[Token]:
    return [Token(text, is_special=text in special) for text in texts]


def read_alone(found: list[Token]) -> tuple[ReadToken, ...]:
    """As if the tokenizer were known by these tokens only."""
    return readable(found, notation_of(found))


def read(*texts: str) -> list[tuple[str, bool]]:
    return [(t.text, t.glued) for t in read_alone(tokens(*texts))]


def kinds(*texts: str) -> str:
    return " ".join(t.kind[0] for t in read_alone(tokens(*texts)))


def test_pieces_of_wordpiece_byte_level_and_sentencepiece_tokenizers_read_as_text():
    assert read("[CLS]", "thaw", "##ing", ".") == [
        ("[CLS]", False),
        ("thaw", False),
        ("ing", True),
        (".", False),
    ]
    assert read("<s>", "caf", "Ã©", "Ġopen", "Ċ", "âĤ") == [
        ("<s>", False),
        ("caf", False),
        ("é", True),
        ("open", False),
        ("↵", True),
        ("�", True),
    ]
    assert read("<s>", "▁frozen", "▁gro", "und", "▁") == [
        ("<s>", False),
        ("frozen", False),
        ("gro", False),
        ("und", True),
        ("␣", False),
    ]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # special, word, continuation, punctuation, in the same sentence of three tokenizers
        (("[CLS]", "thaw", "##ing", ",", "3", ".", "5", "!", "[SEP]"), "s w c p w p w p s"),
        (("<s>", "th", "aw", "ing", ",", "Ġ3", ".", "5", "!", "</s>"), "s w c c p w p w p s"),
        (("<s>", "▁thaw", "ing", ",", "▁3", ".", "5", "!", "</s>"), "s w c p w p w p s"),
        (("▁", "▁naïve", "s", "—", "▁$", "▁5", "kg"), "p w c p p w c"),
        # pieces of characters, marks and letters that are not Latin
        (("Ġgo", "âĤ", "¬"), "w c c"),
        (("न", "##म", "##स्"), "w c c"),
        (("水", "。", "A1"), "w p w"),
    ],
)
def test_kinds_are_told_by_specials_letters_and_joints(pieces: tuple[str, ...], expected: str):
    assert kinds(*pieces) == expected


def test_a_special_token_in_the_middle_begins_a_new_word():
    found = read_alone([Token("Ġa"), Token("<mask>", is_special=True), Token("b")])
    assert [(t.kind, t.glued) for t in found] == [
        ("word", False),
        ("special", False),
        ("word", False),
    ]


def test_a_text_that_looks_like_a_special_token_is_none():
    (found,) = read_alone([Token("[CLS]")])
    assert (found.text, found.kind) == ("[CLS]", "word")


def test_no_tokens_read_as_none():
    assert read_alone([]) == ()


def test_texts_without_spaces_are_read_as_the_others_of_their_tokenizer():
    of_one_word = tokens("Un", "belie", "vable", "!")
    known = notation_of([*of_one_word, *tokens("Ġa")])
    assert [t.kind[0] for t in readable(of_one_word, known)] == ["w", "c", "c", "p"]
    # No token begins with a space: told by letters that are bytes of UTF-8.
    assert read("æĹ¥", "æľ¬", "èªŀ") == [("日", False), ("本", True), ("語", True)]
    assert read("café", "naïve") == [("café", False), ("naïve", False)], "letters, not bytes"
    assert read("日", "本") == [("日", False), ("本", False)]
