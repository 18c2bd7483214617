"""Token prepending: where the placeholder goes and what it takes over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from permafrost.stages.extraction.recipes import (
    PLACEHOLDER,
    TemplateRecipe,
    TokenPrependingRecipe,
    encode,
    parse_recipe,
)
from permafrost.storage.errors import InputError
from tests.stages.extraction.recipes.decoded import said
from tests.stages.extraction.tiny_models import byte_tokenizer, word_tokenizer

BYTES = byte_tokenizer(adds_bos=True)


def test_the_placeholder_stands_before_the_opening_quote_and_its_space() -> None:
    batch = encode(TokenPrependingRecipe(), BYTES, ["the ice"], 60)
    ids = batch.token_ids[0]
    place = ids.tolist().index(PLACEHOLDER)
    assert said(BYTES, ids[:place]) == "This sentence :"
    assert said(BYTES, ids[place + 1 :]) == ' "the ice" means in one word:"'
    assert batch.copies is not None
    assert [c.tolist() for c in batch.copies] == [[[len(ids) - 1, place]]]


@pytest.mark.parametrize("template", ["a{placeholder} {text}", "a {placeholder}{text}"])
def test_a_leading_space_belongs_to_the_token_that_follows(template: str) -> None:
    # "Ġthe" is one token, "Ġ" and "x" are two.
    for text in ("the", "x"):
        ids = encode(TokenPrependingRecipe(template=template), BYTES, [text], 60).token_ids[0]
        assert ids.tolist().index(PLACEHOLDER) == 2


def test_the_source_is_the_end_of_the_input_or_of_the_text() -> None:
    for source, place in (("input_end", 6), ("text_end", 4)):
        template = "the {placeholder}{text} melts"
        recipe = parse_recipe(f"token_prepending:source={source},template={template}")
        batch = encode(recipe, word_tokenizer(), ["snow ice", "frost"], 60)
        assert batch.copies is not None
        assert [c.tolist() for c in batch.copies] == [[[place, 2]], [[place - 1, 2]]]
        assert batch.copies.data.dtype == "int64"
        assert batch.span_start.tolist() == [3, 3]
        assert batch.span_end.tolist() == [5, 4]


def test_a_placeholder_never_comes_behind_a_token_of_the_text() -> None:
    # 'a' and '."' would be apart, but '."' is one token, which the text begins with.
    recipe = TokenPrependingRecipe(template='.{placeholder}{text}"')
    batch = encode(recipe, BYTES, ['"the'], 60)
    assert BYTES.convert_ids_to_tokens(batch.token_ids[0][2:].tolist())[:1] == ['."']
    assert batch.token_ids[0][1] == PLACEHOLDER
    assert batch.span_start.tolist() == [2]


@given(
    text=st.text("the ic.❄ü", min_size=1, max_size=30).filter(str.strip),
    before=st.sampled_from(["", "a", "a ", 'x "', "the: "]),
    between=st.sampled_from(["", " ", '"', ' "', "the "]),
    max_length=st.integers(20, 80),
)
def test_without_the_placeholder_it_is_the_plain_template(
    text: str, before: str, between: str, max_length: int
) -> None:
    """Relation 22 for tokens: a run without copies is the template's run plus an inert token."""
    after = '" melts'
    recipe = TokenPrependingRecipe(template=f"{before}{{placeholder}}{between}{{text}}{after}")
    plain = TemplateRecipe(template=f"{before}{between}{{text}}{after}")
    batch = encode(recipe, BYTES, [text], max_length)
    expected = encode(plain, BYTES, [text], max_length - 1)
    ids = batch.token_ids[0]
    place = ids.tolist().index(PLACEHOLDER)
    is_token = ids != PLACEHOLDER
    assert ids[is_token].tolist() == expected.token_ids[0].tolist()
    assert batch.span[0][is_token].tolist() == expected.span[0].tolist()
    assert not batch.span[0][place]
    assert 1 <= place < batch.span_start[0] == expected.span_start[0] + 1
    assert batch.span_end[0] == expected.span_end[0] + 1
    assert batch.truncated[0] == expected.truncated[0]
    # What stands before the placeholder is never more than the words before it.
    assert before.startswith(said(BYTES, ids[1:place]))


def test_a_length_without_room_for_text_is_refused() -> None:
    recipe = TokenPrependingRecipe(template="the {placeholder}{text} melts")
    with pytest.raises(
        InputError, match=r"max_length is 5, .* alone takes 5 tokens, placeholders included, which"
    ):
        encode(recipe, word_tokenizer(), ["snow"], 5)
    assert len(encode(recipe, word_tokenizer(), ["snow"], 6).token_ids[0]) == 6
