"""Prompts that ask for one word: exact words, and the tokens they give."""

from dataclasses import fields

import numpy as np
import pytest

from permafrost.stages.extraction.recipes import (
    ContrastiveRecipe,
    Encoded,
    MetaEolRecipe,
    Recipe,
    TemplateRecipe,
    encode,
    parse_recipe,
)
from permafrost.storage.errors import InputError
from tests.stages.extraction.recipes.decoded import said
from tests.stages.extraction.tiny_models import byte_tokenizer, word_tokenizer

QUOTED = 'This sentence : "{text}" means in one word:"'
IRRELEVANT = 'The irrelevant information of this sentence : "{text}" means in one word:"'


def require_equal(a: Encoded, b: Encoded) -> None:
    """Everything but `auxiliary`."""
    for name in ("token_ids", "span"):
        np.testing.assert_array_equal(getattr(a, name).data, getattr(b, name).data)
        np.testing.assert_array_equal(getattr(a, name).offsets, getattr(b, name).offsets)
    for name in ("span_start", "span_end", "truncated"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize(
    ("recipe", "template"),
    [
        ("prompt_eol", QUOTED),
        ("prompt_eol:spelling=plain", "This sentence: {text} means in one word:"),
        ("future_eol", "Forecasting the subsequent tokens {text} in one word:"),
        (
            "pretended_cot",
            'After thinking step by step , this sentence : "{text}" means in one word:"',
        ),
    ],
)
def test_published_prompts_are_word_for_word(recipe: str, template: str) -> None:
    for tokenizer in (word_tokenizer(), byte_tokenizer(adds_bos=True)):
        for max_length in (200, 71):
            batch = encode(parse_recipe(recipe), tokenizer, ["the ice.", "snow " * 9], max_length)
            expected = encode(
                TemplateRecipe(template=template), tokenizer, ["the ice.", "snow " * 9], max_length
            )
            require_equal(batch, expected)


def test_prompts_in_our_own_words_end_as_the_published_ones_do() -> None:
    knowledge = parse_recipe("knowledge").template  # type: ignore[union-attr]
    guidance, _, prompt = knowledge.partition(", this sentence")
    assert guidance
    assert f"this sentence{prompt}" == 'this sentence : "{text}" means in one word:"'
    prompts = MetaEolRecipe().prompts
    assert len(set(prompts)) == 8
    for prompt in prompts:
        assert 'this sentence : "{text}" ' in prompt
        assert prompt.endswith('in one word:"')


def test_each_member_of_the_ensemble_is_its_prompt_as_a_template() -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    for member, prompt in zip(MetaEolRecipe().members(), MetaEolRecipe().prompts, strict=True):
        batch = encode(member, tokenizer, ["the ice.", "snow"], 300)
        require_equal(
            batch, encode(TemplateRecipe(template=prompt), tokenizer, ["the ice.", "snow"], 300)
        )


def test_a_given_template_takes_the_place_of_the_spelling() -> None:
    recipe = parse_recipe("prompt_eol:template=Say {text}:")
    require_equal(
        encode(recipe, word_tokenizer(), ["ice"], 20),
        encode(TemplateRecipe(template="Say {text}:"), word_tokenizer(), ["ice"], 20),
    )


def test_contrastive_prompting_has_both_prompts() -> None:
    tokenizer, texts = byte_tokenizer(adds_bos=True), ["the ice.", "snow"]
    batch = encode(ContrastiveRecipe(), tokenizer, texts, 200)
    require_equal(batch, encode(TemplateRecipe(template=QUOTED), tokenizer, texts, 200))
    assert batch.auxiliary is not None
    require_equal(
        batch.auxiliary, encode(TemplateRecipe(template=IRRELEVANT), tokenizer, texts, 200)
    )
    assert batch.copies is None
    assert batch.auxiliary.auxiliary is None


@pytest.mark.parametrize(
    ("template", "auxiliary"), [("a {text}", IRRELEVANT), (QUOTED, "a {text}")]
)
def test_both_prompts_see_the_same_cut_text(template: str, auxiliary: str) -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    recipe = ContrastiveRecipe(template=template, auxiliary=auxiliary)
    texts = ["the ice. über ❄ the lakes melt", "ice"]
    alone = [
        encode(TemplateRecipe(template=t), tokenizer, texts, 200) for t in (template, auxiliary)
    ]
    longest = max(int(b.token_ids.lengths[0]) for b in alone)
    n_cut = 0
    for max_length in range(longest - 20, longest + 2):
        batch = encode(recipe, tokenizer, texts, max_length)
        assert batch.auxiliary is not None
        own = [
            [
                said(tokenizer, ids[span]).strip()
                for ids, span in zip(b.token_ids, b.span, strict=True)
            ]
            for b in (batch, batch.auxiliary)
        ]
        # The last token of a cut text may be shared with the prompt's closing quote.
        assert [t.rstrip('"') for t in own[0]] == [t.rstrip('"') for t in own[1]]
        assert texts[0].startswith(own[0][0].rstrip('"'))
        is_cut = own[0][0] != texts[0]
        for b in (batch, batch.auxiliary):
            assert b.truncated.tolist() == [is_cut, False]
            assert b.token_ids.lengths.max() <= max_length
        n_cut += is_cut
    assert n_cut == 20


def test_either_prompt_of_a_contrast_can_be_too_long() -> None:
    for recipe in (
        ContrastiveRecipe(template="the lake {text}", auxiliary="{text}"),
        ContrastiveRecipe(template="{text}", auxiliary="the lake {text}"),
    ):
        with pytest.raises(InputError, match=r"max_length is 4, but .*the lake .* takes 4 tokens"):
            encode(recipe, word_tokenizer(), ["ice"], 4)


@pytest.mark.parametrize(
    "recipe",
    [parse_recipe(r) for r in ("htp", "contrastive", "plain", "echo:unseen=later tokens")],
)
def test_chosen_texts_are_encoded_as_they_are_alone(recipe: Recipe) -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    texts = ["The ice melts. A lake was cold. Snow!", "the", "Snow was cold. The sun is warm."]
    together = encode(recipe, tokenizer, texts, 200)
    assert len(together) == 3
    taken = together.take(np.asarray([2, 0, 2]))
    alone = encode(recipe, tokenizer, [texts[2], texts[0], texts[2]], 200)
    require_equal(taken, alone)
    for name in ("copies", "auxiliary", "unseen"):
        assert (getattr(taken, name) is None) == (getattr(alone, name) is None)
    if taken.copies is not None and alone.copies is not None:
        assert [c.tolist() for c in taken.copies] == [c.tolist() for c in alone.copies]
    if taken.unseen is not None and alone.unseen is not None:
        assert [u.tolist() for u in taken.unseen] == [u.tolist() for u in alone.unseen]
    if taken.auxiliary is not None and alone.auxiliary is not None:
        require_equal(taken.auxiliary, alone.auxiliary)
    assert {f.name for f in fields(Encoded)} == {
        *("token_ids", "span", "span_start", "span_end", "truncated", "copies", "auxiliary"),
        "unseen",
    }
