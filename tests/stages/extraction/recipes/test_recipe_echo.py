"""Echo: both copies, the span over the second, and cutting."""

import pytest

from permafrost.stages.extraction.recipes import EchoRecipe, encode
from permafrost.storage.errors import InputError
from tests.stages.extraction.tiny_models import byte_tokenizer, word_tokenizer


def test_the_text_stands_twice_and_the_second_copy_is_the_span() -> None:
    tokenizer = word_tokenizer()
    recipe = EchoRecipe(template="the {first} melts , {text} !")
    batch = encode(recipe, tokenizer, ["snow ice"], 60)
    whole = tokenizer("the snow ice melts , snow ice !")["input_ids"]
    assert batch.token_ids.data.tolist() == whole
    assert batch.span.data.tolist() == [False] * 6 + [True] * 2 + [False] * 2
    assert (int(batch.span_start[0]), int(batch.span_end[0])) == (6, 8)
    assert batch.copies is None


def test_both_copies_are_cut_alike() -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    text = "the ice. über ❄ the lakes melt"
    recipe = EchoRecipe(template='A: {first} B: "{text}"')
    whole = len(encode(recipe, tokenizer, [text], 200).token_ids[0])
    for max_length in range(16, whole):
        batch = encode(recipe, tokenizer, [text], max_length)
        ids = batch.token_ids[0].tolist()
        inputs = [
            tokenizer(f'A: {text[:n]} B: "{text[:n]}"')["input_ids"] for n in range(1, len(text))
        ]
        assert ids in inputs
        assert batch.truncated.tolist() == [True]
        # What one more character in both copies, the merged '."' and rounding can take.
        assert max_length - 12 < len(ids) <= max_length
    assert not encode(recipe, tokenizer, [text], whole).truncated.any()


def test_a_length_for_one_copy_only_is_refused() -> None:
    recipe = EchoRecipe(template="the {first} {text}")
    assert encode(recipe, word_tokenizer(), ["snow ice"], 5).truncated.tolist() == [True]
    with pytest.raises(InputError, match=r"max_length is 4, but the template .* takes 3 tokens, "):
        encode(recipe, word_tokenizer(), ["snow ice"], 4)
