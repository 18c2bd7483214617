"""Templates: filling, cutting, and which tokens are the text's own."""

import pytest

from permafrost.stages.extraction.recipes import Encoded, TemplateRecipe, encode, normalise_sentence
from permafrost.storage.errors import InputError
from tests.stages.extraction.tiny_models import byte_tokenizer, word_tokenizer


def template(text: str) -> TemplateRecipe:
    return TemplateRecipe(template=text)


def rows(batch: Encoded) -> list[list[int]]:
    return [ids.tolist() for ids in batch.token_ids]


def test_a_template_is_filled_and_only_the_text_is_in_the_span() -> None:
    tokenizer = word_tokenizer()
    recipe = template("the lake of {text} never melts")
    batch = encode(recipe, tokenizer, ["snow ice"], 60)
    assert rows(batch) == tokenizer(["the lake of snow ice never melts"])["input_ids"]
    assert (int(batch.span_start[0]), int(batch.span_end[0])) == (4, 6)
    assert batch.span.data.tolist() == [False] * 4 + [True] * 2 + [False] * 3


def test_a_template_keeps_its_words_when_the_text_is_cut() -> None:
    tokenizer = word_tokenizer()
    batch = encode(template("the {text} melts"), tokenizer, ["snow ice frost lake", "snow"], 6)
    cut, short = ("the snow ice melts", "the snow melts")
    assert rows(batch) == tokenizer([cut, short])["input_ids"]
    assert batch.truncated.tolist() == [True, False]
    assert [s.tolist() for s in batch.span] == [
        [False, False, True, True, False, False],
        [False, False, True, False, False],
    ]


def test_a_cut_template_is_the_template_of_a_shorter_text() -> None:
    # The tokenizer merges '."' into one token, so cutting tokens would lose the closing quote.
    tokenizer = byte_tokenizer(adds_bos=True)
    text = "the ice. the ice. über ❄ ice."
    for max_length in range(14, 40):
        batch = encode(template('a "{text}"'), tokenizer, [text], max_length)
        prefixes = [tokenizer(f'a "{text[:n]}"')["input_ids"] for n in range(1, len(text) + 1)]
        assert rows(batch)[0] in prefixes
        assert len(rows(batch)[0]) <= max_length
        assert bool(batch.truncated[0]) == (rows(batch)[0] != prefixes[-1])
        # Nearly all of the room is used: what the merge and one character's bytes can waste is small.
        if batch.truncated[0]:
            assert len(rows(batch)[0]) > max_length - 5


def test_a_token_shared_by_text_and_prompt_is_the_texts() -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    batch = encode(template('"{text}"'), tokenizer, ["ice."], 20)
    tokens = tokenizer.convert_ids_to_tokens(rows(batch)[0])
    assert tokens == ["<s>", '"', "ice", '."']
    assert batch.span.data.tolist() == [False, False, True, True]


def test_a_template_without_room_for_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"max_length is 4, but the template .* takes 4 tokens, "):
        encode(template("the {text} melts"), word_tokenizer(), ["snow"], 4)
    # Room for one of the three bytes of a character is none for the text.
    with pytest.raises(InputError, match=r"max_length is 3, but the template .* takes 2 tokens, "):
        encode(template("a{text}"), byte_tokenizer(adds_bos=True), ["❄"], 3)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("snow  melts\n slowly\t", "snow melts slowly."),
        ("snow melts.", "snow melts."),
        ("is it ice?", "is it ice."),
        ("ice!", "ice!."),
        ('a "blue" lake', "a 'blue' lake."),
        ('say "ice?"', "say 'ice?'"),
        ("it's the lakes'", "it's the lakes'"),
        ("?", "."),
    ],
)
def test_a_sentence_is_normalised_as_the_prompt_family_does(text: str, normalised: str) -> None:
    assert normalise_sentence(text) == normalised
    assert normalise_sentence(normalised) == normalised


def test_normalisation_comes_before_the_template() -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    recipe = TemplateRecipe(template='a "{text}"', normalise="sentence")
    batch = encode(recipe, tokenizer, [' the  "ice"', "the ice?"], 40)
    assert rows(batch) == tokenizer(["a \"the 'ice'\"", 'a "the ice."'])["input_ids"]
    assert not batch.truncated.any()
