"""Recipes from text, their identity, and what a backbone makes of them.

Run as a script, this file writes the golden identities again; explain it in the commit.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from permafrost.stages.extraction.backbone import BackboneFiles, read_sizes
from permafrost.stages.extraction.recipes import (
    RECIPES,
    ContrastiveRecipe,
    HtpRecipe,
    Intervention,
    MetaEolRecipe,
    PlainRecipe,
    RecipeConfig,
    Rewiring,
    TemplateRecipe,
    TokenPrependingRecipe,
    definite_readout,
    encode,
    parse_recipe,
    recipe_identity,
    recipe_of,
    resolve_recipe,
)
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from tests.stages.extraction.tiny_models import word_tokenizer

GOLDEN = Path(__file__).parents[3] / "golden" / "recipes.json"
Files = Callable[[str], BackboneFiles]

KINDS = list(RECIPES.kinds())
OPTIONS = {"template": ":template=Topic of {text}:"}


def sizes_of(n_layers: int, *, is_decoder: bool = True) -> BackboneSizes:
    return BackboneSizes(
        model_type="llama" if is_decoder else "bert",
        n_layers=n_layers,
        d_model=8,
        d_value=8,
        n_attn_heads=2,
        n_kv_heads=2,
        d_head=4,
        has_final_norm=True,
        is_decoder=is_decoder,
        max_positions=64,
    )


def current() -> dict[str, Any]:
    return {k: recipe_identity(parse_recipe(k + OPTIONS.get(k, ""))) for k in KINDS}


def regenerate() -> None:
    GOLDEN.write_text(json.dumps(current(), indent=1, ensure_ascii=False) + "\n")


def test_identities_of_the_defaults_are_those_of_earlier_versions() -> None:
    assert current() == json.loads(GOLDEN.read_text())


def test_recipes_of_existing_stores_keep_their_identity() -> None:
    assert recipe_identity(PlainRecipe(readout="last")) == {
        "kind": "plain",
        "specials": "include",
        "readout": "last",
    }
    assert recipe_identity(TemplateRecipe(template="x {text}")) == {
        "kind": "template",
        "template": "x {text}",
        "readout": "auto",
    }


def test_fields_that_came_later_are_in_the_identity_once_they_are_set() -> None:
    assert recipe_identity(PlainRecipe(bos="omit"))["bos"] == "omit"
    for kind in KINDS:
        recipe = parse_recipe(kind + OPTIONS.get(kind, ""))
        normalised = recipe.model_copy(update={"normalise": "sentence"})
        assert recipe_identity(normalised) == {**recipe_identity(recipe), "normalise": "sentence"}
        assert "max_length" not in recipe_identity(recipe)


@pytest.mark.parametrize("kind", KINDS)
def test_an_identity_gives_the_recipe_back_also_inside_another_model(kind: str) -> None:
    class Config(BaseModel):
        recipe: RecipeConfig

    recipe = parse_recipe(kind + OPTIONS.get(kind, ""))
    recipe = recipe.model_copy(update={"normalise": "sentence", "readout": "first"})
    identity = json.loads(json.dumps(recipe_identity(recipe)))
    assert RECIPES.validate(identity) == recipe
    assert Config(recipe=recipe).model_dump(mode="json") == {"recipe": identity}


def test_changed_wording_changes_the_identity() -> None:
    for kind in ("prompt_eol", "future_eol", "pretended_cot", "knowledge", "contrastive", "htp"):
        changed = recipe_identity(parse_recipe(f"{kind}:template=In a word, {{text}}:"))
        assert changed == {**recipe_identity(parse_recipe(kind)), "template": "In a word, {text}:"}


@pytest.mark.parametrize(
    ("spelt", "template"),
    [
        ("prompt_eol:spelling=htp", "The sentence means {text} in one word."),
        ("prompt_eol:spelling=htp_paragraph", "The paragraph {text} means in one word."),
        ("token_prepending:spelling=htp", "The sentence means {placeholder}{text} in one word."),
        (
            "token_prepending:spelling=htp_paragraph",
            "The paragraph {placeholder}{text} means in one word.",
        ),
        ("token_prepending:spelling=text", "{placeholder}{text}"),
        ("echo:spelling=htp", "{first} {text}"),
    ],
)
def test_wordings_of_htp_have_names(spelt: str, template: str) -> None:
    """HTP, sections 5.2 and 5.3."""
    kind, _, _ = spelt.partition(":")
    recipe = parse_recipe(spelt)
    assert recipe.template == template  # type: ignore[union-attr]
    assert recipe_of(recipe_identity(recipe)) == recipe
    with pytest.raises(InputError, match="spelling"):
        parse_recipe(f"{kind}:spelling=loud")


def test_rewiring_may_stop_where_htps_table_9_says() -> None:
    for kind, n_layers, stop in (("mistral", 32, 7), ("gemma2", 42, 6), ("qwen2", 28, 7)):
        sizes = sizes_of(n_layers).model_copy(update={"model_type": kind})
        for name in ("htp", "token_prepending"):
            resolved = resolve_recipe(parse_recipe(f"{name}:stop=htp"), sizes)
            assert recipe_identity(resolved)["stop"] == stop
    with pytest.raises(
        InputError, match=r"Gemma-2-9b \(gemma2, 42 blocks\).* is llama with 32 blocks"
    ):
        resolve_recipe(parse_recipe("htp:stop=htp"), sizes_of(32))


def test_recipes_are_read_from_text() -> None:
    assert parse_recipe("plain") == PlainRecipe()
    assert parse_recipe("plain:specials=exclude,readout=last,bos=omit") == PlainRecipe(
        specials="exclude", readout="last", bos="omit"
    )
    assert parse_recipe(
        "htp:size=3,stop=auto,start=0,block=tokens,normalise=sentence"
    ) == HtpRecipe(size=3, start=0, block="tokens", normalise="sentence")
    assert parse_recipe("htp:stop=2") == HtpRecipe(stop=2)
    assert parse_recipe("contrastive:block=2,coefficient=0.25") == ContrastiveRecipe(
        block=2, coefficient=0.25
    )


def test_a_template_may_hold_commas_colons_and_equals_signs() -> None:
    prompt = 'a=b, so: "{text}", which means'
    assert parse_recipe(f"template:readout=first,template={prompt}") == TemplateRecipe(
        template=prompt, readout="first"
    )
    assert parse_recipe(f"template:template={prompt},readout=first").template == prompt  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt", "there is no recipe 'prompt'; there are contrastive, echo, future_eol, htp, "),
        ("", "there is no recipe ''"),
        (
            "plain:special=include",
            "'special' .* is not an option; plain has specials, bos, end, instruction_words, readout",
        ),
        ("plain:exclude", "'exclude' .* is not an option"),
        ("plain:readout=last,readout=first", "'readout' .* is given twice"),
        ("plain:specials=none", "specials: Input should be 'include' or 'exclude'"),
        ("template", "template: this field has to be given"),
        ("template:template=no slot", "contains {text} 0 times"),
        ("template:template={text} {text}", "contains {text} 2 times"),
        ("htp:template=no slot", "contains {text} 0 times"),
        ("echo:template={text}", "contains {first} 0 times"),
        ("echo:template={text} {first}", "has {first} after {text}"),
        ("token_prepending:template={text}", "contains {placeholder} 0 times"),
        ("token_prepending:template={text}{placeholder}", "has {placeholder} after {text}"),
        ("contrastive:auxiliary=none", "auxiliary: .* contains {text} 0 times"),
        ("contrastive:block=0", "block: Input should be greater than or equal to 1"),
        ("contrastive:block=last", "block: expected a whole number.*block: .*'auto'"),
        ("contrastive:coefficient=inf", "coefficient: Input should be a finite number"),
        ("prompt_eol:spelling=bold", "spelling: Input should be 'quoted', 'plain', 'htp' or"),
        ("htp:size=0", "size: Input should be greater than or equal to 1"),
        ("htp:size=1.5", "size: expected a whole number .given: '1.5'"),
        ("htp:seed=-1", "seed: Input should be greater than or equal to 0"),
        ("meta_eol[0]", r"no recipe meta_eol\[0\]; the prompts of meta_eol are numbered 1\.\.8"),
        ("meta_eol[9]", r"no recipe meta_eol\[9\]; .* numbered 1\.\.8"),
        ("meta_eol[]", r"no recipe meta_eol\[\]; .* numbered 1\.\.8"),
        ("meta_eol[1", r"no recipe meta_eol\[1; .* numbered 1\.\.8"),
        ("plain[1]", r"plain is not an ensemble, so it has no member \[1\]"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_exists(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_recipe(text)


def test_a_recipe_takes_no_fields_of_another_kind() -> None:
    with pytest.raises(ValidationError, match="template"):
        PlainRecipe.model_validate({"kind": "plain", "template": "{text}"})


def test_an_ensemble_expands_into_one_recipe_per_prompt() -> None:
    ensemble = parse_recipe("meta_eol:readout=last")
    members = ensemble.members()
    assert len(members) == 8
    assert members == tuple(parse_recipe(f"meta_eol[{i}]:readout=last") for i in range(1, 9))
    assert [m.prompts for m in members] == [(p,) for p in ensemble.prompts]  # type: ignore[union-attr]
    assert len({json.dumps(recipe_identity(m)) for m in members}) == 8
    assert members[2].members() == (members[2],)
    assert PlainRecipe().members() == (PlainRecipe(),)


def test_an_ensemble_has_no_input_of_its_own() -> None:
    ensemble = MetaEolRecipe(prompts=("a {text}", "b {text}"))
    with pytest.raises(InputError, match=r"2 prompts .* meta_eol\[1\] to meta_eol\[2\], or 'perm"):
        encode(ensemble, word_tokenizer(), ["ice"], 20)
    with pytest.raises(InputError, match="meta_eol has 8 prompts"):
        resolve_recipe(MetaEolRecipe(), sizes_of(3))


def test_prompts_of_an_ensemble_have_a_slot_each() -> None:
    with pytest.raises(ValidationError, match=r"'b' contains \{text\} 0 times"):
        MetaEolRecipe(prompts=("a {text}", "b"))
    with pytest.raises(ValidationError, match="at least 1 item"):
        MetaEolRecipe(prompts=())


def test_prompts_of_a_users_own_are_a_json_list() -> None:
    given = 'meta_eol:prompts=["On {text}, briefly:", "\\"{text}\\" is"],readout=last'
    expected = MetaEolRecipe(prompts=("On {text}, briefly:", '"{text}" is'), readout="last")
    assert parse_recipe(given) == expected
    assert parse_recipe(given.replace("meta_eol", "meta_eol[2]")) == expected.members()[1]


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ("On {text}:", r"prompts: .*'On \{text\}:' is not a list of prompts; write it as JSON"),
        ('"{text}"', "is not a list of prompts"),
        ('["On {text}", 3]', "prompts: Input should be a valid string"),
        ('["On it"]', r"'On it' contains \{text\} 0 times"),
        ("[]", "expected a list of at least 1"),
    ],
)
def test_prompts_that_are_no_list_of_prompts_are_refused(prompts: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_recipe(f"meta_eol:prompts={prompts}")


def test_an_automatic_readout_becomes_definite(tiny_files: Files) -> None:
    encoder, decoder = read_sizes(tiny_files("bert")), read_sizes(tiny_files("llama"))
    assert definite_readout(resolve_recipe(PlainRecipe(), encoder)) == "first"
    assert definite_readout(resolve_recipe(PlainRecipe(), decoder)) == "last"
    assert resolve_recipe(PlainRecipe(readout="last"), encoder).readout == "last"
    assert resolve_recipe(TemplateRecipe(template="x {text}"), decoder) == TemplateRecipe(
        template="x {text}", readout="last"
    )
    for recipe in parse_recipe("meta_eol").members():
        assert definite_readout(resolve_recipe(recipe, decoder)) == "last"


@pytest.mark.parametrize(("n_layers", "block"), [(1, 1), (3, 1), (12, 2), (32, 5), (80, 12)])
def test_an_automatic_block_is_at_the_papers_depth(n_layers: int, block: int) -> None:
    # 5 / 32 of 80 is 12.5, which Python rounds to the even number.
    resolved = resolve_recipe(ContrastiveRecipe(mode="norm"), sizes_of(n_layers))
    assert resolved.intervention == Intervention(block, "norm", 0.5)
    assert resolved.rewiring is None
    assert recipe_identity(resolved)["block"] == block


@pytest.mark.parametrize(
    ("n_layers", "start", "stop"),
    [(1, 0, 1), (1, 1, 1), (3, 1, 2), (3, 3, 3), (12, 1, 3), (32, 1, 7), (32, 9, 10)],
)
def test_an_automatic_stop_is_at_the_papers_depth(n_layers: int, start: int, stop: int) -> None:
    for recipe in (HtpRecipe(start=start), TokenPrependingRecipe(start=start)):
        resolved = resolve_recipe(recipe, sizes_of(n_layers))
        assert resolved.rewiring == Rewiring(start, stop, "mean", 0)
        assert resolved.intervention is None
        assert recipe_identity(resolved)["stop"] == stop


def test_settings_of_the_alterations_are_handed_on() -> None:
    htp = resolve_recipe(HtpRecipe(start=0, stop=0, placeholder="noise", seed=7), sizes_of(3))
    assert htp.rewiring == Rewiring(0, 0, "noise", 7)
    plain = resolve_recipe(PlainRecipe(), sizes_of(3))
    assert (plain.rewiring, plain.intervention) == (None, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("start=3,stop=2", "from start=3 to stop=2, but 0 <= start <= stop <= 3"),
        ("stop=4", "from start=1 to stop=4, but 0 <= start <= stop <= 3"),
        ("start=-1", "from start=-1 to stop=1, but"),
        ("start=4", "from start=4 to stop=3, but"),
    ],
)
def test_a_rewiring_that_the_backbone_has_no_blocks_for_is_refused(
    options: str, message: str
) -> None:
    for kind in ("htp", "token_prepending"):
        with pytest.raises(InputError, match=message):
            resolve_recipe(parse_recipe(f"{kind}:{options}"), sizes_of(3))


def test_a_contrast_in_a_block_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"changes block 4, .* has the blocks 1\.\.3"):
        resolve_recipe(ContrastiveRecipe(block=4), sizes_of(3))


@pytest.mark.parametrize("kind", ["htp", "token_prepending", "contrastive"])
def test_recipes_for_decoders_are_refused_by_an_encoder(kind: str) -> None:
    with pytest.raises(InputError, match=f"the recipe {kind} .* bert is an encoder"):
        resolve_recipe(parse_recipe(kind), sizes_of(3, is_decoder=False))


if __name__ == "__main__":
    regenerate()
