"""The words of a task around a recipe's input: where they stand, what they leave alone."""

import pytest
from pydantic import ValidationError

from permafrost.stages.extraction.recipes import (
    RECIPES,
    EchoRecipe,
    HtpRecipe,
    MetaEolRecipe,
    PlainRecipe,
    Recipe,
    TokenPrependingRecipe,
    encode,
    parse_recipe,
    recipe_identity,
)
from permafrost.storage.errors import InputError
from tests.stages.extraction.recipes.decoded import said
from tests.stages.extraction.tiny_models import word_tokenizer

WORDS = word_tokenizer()
WORDS.mask_token = "<unk>"  # a word that it has; prompt_bert needs one
KINDS = tuple(RECIPES.kinds().values())
MINIMAL = {"template": {"template": "the {text}"}}
TEXT = "snow melts the lake freezes under thin ice"


def of_kind(kind: type[Recipe], **fields: str) -> Recipe:
    return kind(**MINIMAL.get(kind.name(), {}), **fields)  # type: ignore[return-value]


def words(recipe: Recipe, max_length: int = 200) -> str:
    return said(WORDS, encode(recipe, WORDS, [TEXT], max_length).token_ids[0])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name())
def test_an_instruction_is_part_of_the_identity_and_none_leaves_it_as_it_was(
    kind: type[Recipe],
) -> None:
    plain, asked, other = (
        recipe_identity(of_kind(kind, instruction=words))
        for words in ("{text}", "find: {text}", "find {text}")
    )
    assert "instruction" not in plain
    assert plain == recipe_identity(of_kind(kind))
    assert asked == plain | {"instruction": "find: {text}"}
    assert asked != other


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name())
def test_an_instruction_stands_once_in_front_of_the_whole_input(kind: type[Recipe]) -> None:
    recipe, asked = of_kind(kind), of_kind(kind, instruction="never the lake {text}")
    if isinstance(recipe, MetaEolRecipe) and isinstance(asked, MetaEolRecipe):
        recipe, asked = recipe.members()[2], asked.members()[2]
    assert words(asked) == f"never the lake {words(recipe)}"
    batch = encode(asked, WORDS, [TEXT], 200)
    if batch.auxiliary is not None:
        assert said(WORDS, batch.auxiliary.token_ids[0]).startswith("never the lake ")


@pytest.mark.parametrize(
    "recipe",
    [
        PlainRecipe(instruction="never the lake {text}"),
        EchoRecipe(template="{first} {text}", instruction="never the lake {text}"),
        HtpRecipe(instruction="never the lake {text}"),
        TokenPrependingRecipe(template="{placeholder}{text}", instruction="never the lake {text}"),
    ],
    ids=lambda recipe: recipe.kind,
)
def test_what_is_too_long_loses_text_and_no_word_of_the_instruction(recipe: Recipe) -> None:
    batch = encode(recipe, WORDS, [TEXT], 12)
    ids = batch.token_ids[0]
    kept = said(WORDS, ids[batch.span_start[0] : batch.span_end[0]])
    assert len(ids) <= 12
    assert batch.truncated.tolist() == [True]
    assert TEXT.startswith(kept)
    assert kept != TEXT
    repeated = f"{kept} {kept}" if recipe.kind == "echo" else kept
    assert said(WORDS, ids) == f"never the lake {repeated}"
    with pytest.raises(InputError, match="no room for"):
        encode(recipe, WORDS, [TEXT], 5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", "snow melts </s>"),
        ("specials=exclude,", "snow melts"),
        ("instruction_words=include,", "<s> was the snow melts </s>"),
        ("instruction_words=include,specials=exclude,", "was the snow melts"),
        ("instruction_words=include,bos=omit,", "was the snow melts </s>"),
        ("bos=omit,", "snow melts </s>"),
    ],
)
def test_the_span_of_plain_texts_takes_the_instruction_or_not(options: str, expected: str) -> None:
    recipe = parse_recipe(f"plain:{options}instruction=was the {{text}}")
    batch = encode(recipe, WORDS, ["snow melts"], 200)
    assert WORDS.decode(batch.token_ids[0][batch.span[0]].tolist()) == expected
    inside = batch.token_ids[0][batch.span_start[0] : batch.span_end[0]]
    assert said(WORDS, inside) == "snow melts"


def test_htp_puts_its_placeholders_between_the_instruction_and_the_text() -> None:
    whole = encode(HtpRecipe(), WORDS, [TEXT], 200)
    asked = encode(HtpRecipe(instruction="never the lake {text}"), WORDS, [TEXT], 200)
    n_words = 3
    before, after = whole.token_ids[0], asked.token_ids[0]
    assert after[1 + n_words :].tolist() == before[1:].tolist()
    assert asked.span[0][1 + n_words :].tolist() == whole.span[0][1:].tolist()
    assert not asked.span[0][: 1 + n_words].any()
    assert whole.copies is not None
    assert asked.copies is not None
    assert asked.copies[0].tolist() == (whole.copies[0] + n_words).tolist()


@pytest.mark.parametrize(
    ("instruction", "says"),
    [
        ("find", "contains {text} 0 times"),
        ("{text} {text}", "contains {text} 2 times"),
        ("find {first} {text}", "contains {first}"),
        ("{placeholder} {text}", "contains {placeholder}"),
    ],
)
def test_an_instruction_has_one_slot(instruction: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EchoRecipe(instruction=instruction)
