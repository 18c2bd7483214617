"""Echo with a part of its attention cut, against transformers with the same mask."""

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.recipes import EchoRecipe, Encoded, encode, resolve_recipe
from permafrost.stages.extraction.recipes.recipe import recipe_identity, recipe_of
from permafrost.stages.finetune.token_place import require_fits
from permafrost.stages.sensitivity.config import require_differentiable
from permafrost.storage.errors import InputError
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import (
    DECODERS,
    EVERYTHING,
    ROW_TOLERANCE,
    Pairs,
    close,
    encoded,
    per_text,
    run,
    tensor,
)
from tests.stages.extraction.tiny_models import N_LAYERS

TEXTS = ("ice", "the lake . ü", "snow is not")
PARTS = ("first copy", "later tokens", "earlier tokens")


def masked(backbone: Backbone, part: str) -> Encoded:
    return encoded(backbone, f"echo:spelling=htp,unseen={part}", TEXTS)


def hidden_from(backbone: Backbone, text: str, part: str) -> Tensor:
    """`[T, T]`, True where a query attends, from the characters that tokens have; written down as the field
    says, pair by pair. What lies between the copies sees nothing of the first."""
    told = backbone.tokenizer(f"{text} {text}", return_offsets_mapping=True)
    spans, n = told["offset_mapping"], len(text)
    copies = [
        [i for i, (a, b) in enumerate(spans) if a < end and b > max(a, start)]
        for start, end in ((0, n), (n + 1, 2 * n + 1))
    ]
    seen = torch.ones(len(spans), len(spans), dtype=torch.bool).tril()
    seen[copies[0][-1] + 1 : copies[1][0], copies[0]] = False
    for query in copies[1]:
        own = spans[query][0] - n - 1, spans[query][1] - n - 1
        for key in copies[0]:
            later, earlier = spans[key][0] >= own[1], spans[key][1] <= own[0]
            if part == "first copy" or (later if part == "later tokens" else earlier):
                seen[query, key] = False
    return seen


def reference(both: Pair, ids: np.ndarray, seen: Tensor):
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        return both.reference(
            input_ids=tensor(ids)[None],
            attention_mask=added[None, None],
            position_ids=torch.arange(len(seen))[None],
            output_hidden_states=True,
            output_attentions=True,
        )


@pytest.mark.few(9)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("model_type", DECODERS)
def test_states_are_those_of_transformers_with_the_same_mask(
    pair: Pairs, model_type: str, part: str
) -> None:
    both = pair(model_type)
    batch = masked(both.backbone, part)
    longest = int(batch.token_ids.lengths.max())
    window = getattr(both.reference.config, "sliding_window", None)
    if window is not None and longest > window:
        with pytest.raises(
            InputError, match=rf"an input has {longest} tokens .* see {window} at a"
        ):
            run(both.backbone, "hidden=all", batch)
        return
    ours = run(both.backbone, EVERYTHING, batch)
    plain = run(both.backbone, "hidden=all", encoded(both.backbone, "echo:spelling=htp", TEXTS))
    for i, ids in enumerate(batch.token_ids):
        seen = hidden_from(both.backbone, TEXTS[i], part)
        theirs = reference(both, ids, seen)
        for k in range(N_LAYERS):
            rows = per_text(ours[f"hidden/{k}"], batch)[i]
            assert close(rows, theirs.hidden_states[k][0]), (k, TEXTS[i])
        for block in range(1, N_LAYERS + 1):
            row = per_text(ours[f"attention_rows/{block}"], batch)[i]
            expected = theirs.attentions[block - 1][0, :, -1].T
            assert float((row - expected).abs().max()) <= ROW_TOLERANCE
            assert not row[~seen[-1]].any()
    last = f"hidden/{N_LAYERS}"
    assert not torch.allclose(ours[last], plain[last], atol=1e-3), "the cut changes something"


def test_what_causal_attention_hides_anyway_changes_nothing(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    ours = run(backbone, EVERYTHING, masked(backbone, "second copy"))
    plain = run(backbone, EVERYTHING, encoded(backbone, "echo:spelling=htp", TEXTS))
    assert all(close(ours[name], plain[name]) for name in plain)


def test_texts_that_are_cut_lose_both_copies_alike(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    text = "the deep lake freezes slowly"
    batch = encoded(backbone, "echo:spelling=htp,unseen=first copy", [text], 30)
    assert batch.truncated.all()
    assert batch.unseen is not None
    rows, first = batch.unseen[0], batch.unseen[0][0]
    # Behind <s>, up to the second copy; the space between them may be a token of its own.
    assert first[1] == 1
    assert first[2] in (int(batch.span_start[0]), int(batch.span_start[0]) - 1)
    assert rows[:, 0].tolist() == [*range(first[2], int(batch.span_end[0]))]


@pytest.mark.parametrize("part", [*PARTS, "second copy"])
@pytest.mark.parametrize("template", ["{first}{text}", "{first} {text}"])
def test_a_token_of_both_copies_is_one_of_the_second(pair: Pairs, part: str, template: str) -> None:
    backbone = pair("gpt2").backbone
    texts = (*TEXTS, "hot", "e th", "  A dog runs ", "a")
    batch = encoded(backbone, f"echo:unseen={part},template={template}", texts)
    assert batch.unseen is not None
    for i, rows in enumerate(batch.unseen):
        second, end = int(batch.span_start[i]), int(batch.span_end[i])
        for query, first, last in rows.tolist():
            assert not first <= query < last
            if part == "second copy":
                assert (first, last) == (second, end)
            else:
                assert last <= second <= end
    assert all(torch.isfinite(v).all() for v in run(backbone, EVERYTHING, batch).values())


@pytest.mark.parametrize("spelling", ["htp", "asked"])
def test_nothing_of_the_first_copy_reaches_the_second(pair: Pairs, spelling: str) -> None:
    """Not through the words between them either: other tokens in the first change no state of the second."""
    backbone = pair("llama").backbone
    batch = encoded(backbone, f"echo:spelling={spelling},unseen=first copy", TEXTS)
    other = encoded(backbone, f"echo:spelling={spelling},unseen=first copy", TEXTS)
    assert batch.unseen is not None
    for i, rows in enumerate(batch.unseen):
        ids, (_, start, end) = other.token_ids[i], rows[0]
        ids[start:end] = (ids[start:end] + 1) % 20 + 5
    ours, theirs = (run(backbone, "hidden=all", b) for b in (batch, other))
    last = f"hidden/{N_LAYERS}"
    for i, start in enumerate(batch.span_start):
        rows, changed = (per_text(x[last], batch)[i] for x in (ours, theirs))
        assert not close(rows[: int(start)], changed[: int(start)]), "the first copy is another one"
        assert close(rows[int(start) :], changed[int(start) :])


def test_stores_that_were_made_before_keep_their_ids_and_others_get_one(pair: Pairs) -> None:
    """Whether the words between see the first copy is in the identity, as it changes states."""
    sizes = pair("llama").backbone.sizes
    plain = recipe_identity(resolve_recipe(EchoRecipe(), sizes))
    assert "between" not in plain
    hidden = recipe_identity(resolve_recipe(EchoRecipe(unseen="first copy"), sizes))
    assert hidden["between"] == "blind"
    assert "between" not in recipe_identity(resolve_recipe(EchoRecipe(unseen="second copy"), sizes))
    # What an earlier store says: no choice, so that the words saw the first copy.
    earlier = recipe_of({name: value for name, value in hidden.items() if name != "between"})
    backbone = pair("llama").backbone
    now, then = (
        encode(r, backbone.tokenizer, TEXTS, 64).unseen for r in (recipe_of(hidden), earlier)
    )
    assert now is not None
    assert then is not None
    seeing = EchoRecipe(unseen="first copy", between="seeing")
    asked = encode(resolve_recipe(seeing, sizes), backbone.tokenizer, TEXTS, 64).unseen
    assert asked is not None
    assert all(np.array_equal(a, b) for a, b in zip(asked, then, strict=True))
    assert sum(map(len, now)) > sum(map(len, then))


def test_it_is_refused_where_it_has_no_meaning(pair: Pairs) -> None:
    recipe = EchoRecipe(unseen="first copy")
    with pytest.raises(InputError, match=r"hides 'first copy' .* but bert is an encoder"):
        resolve_recipe(recipe, pair("bert").backbone.sizes)
    decoder = pair("llama").backbone.sizes
    with pytest.raises(InputError, match="changes the forward pass itself"):
        require_fits(recipe, decoder, None)
    with pytest.raises(InputError, match="hides tokens from others"):
        require_differentiable(resolve_recipe(recipe, decoder), decoder)
