"""From sensitivities to curves over a text, and the whole stage on tiny models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import spearmanr

from permafrost.stages.sensitivity import SensitivityConfig, SensitivityProfile, measure_sensitivity
from permafrost.stages.sensitivity.gradients import output_directions, sensitivity
from permafrost.stages.sensitivity.mixing import block_mixings, copies_before, path_sums
from permafrost.stages.sensitivity.profile import density_by_position, own_tokens
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import encoded, resolved
from tests.stages.extraction.tiny_models import D_MODEL, N_LAYERS, TEXTS

Pairs = Callable[[str], Pair]
QUIET = SilentProgress()
SMALL = SensitivityConfig(n_texts=9, min_words=2, n_directions=None, n_bins=4)


def measured(both: Pair, config: SensitivityConfig, recipe: str = "plain") -> SensitivityProfile:
    found = resolved(both.backbone, recipe)
    return measure_sensitivity(config, both.backbone, found, 60, TEXTS, QUIET)


@pytest.mark.parametrize(("n", "n_bins"), [(7, 3), (4, 4), (10, 1), (23, 5)])
def test_densities_are_shares_times_the_number_of_tokens(n: int, n_bins: int) -> None:
    values = np.random.default_rng(n).random(n)
    found = density_by_position(values, n_bins)
    for b in range(n_bins):
        inside = [i for i in range(n) if b <= (i + 0.5) / n * n_bins < b + 1]
        expected = n * sum(values[inside]) / len(inside) / values.sum()
        assert found[b] == pytest.approx(expected, rel=1e-12)
    assert density_by_position(np.full(n, 0.3), n_bins) == pytest.approx(np.ones(n_bins))
    assert density_by_position(7 * values, n_bins) == pytest.approx(found, rel=1e-12)


def test_own_tokens_are_neither_prompt_nor_special_nor_placeholders(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    for recipe in ("plain", "template:template=wind {text} sun .", "htp:block=tokens,size=3"):
        batch = encoded(backbone, recipe, ("snow melts",))
        own = own_tokens(batch, 0)
        ids = batch.token_ids[0][own]
        assert (ids >= 0).all()
        assert backbone.tokenizer.decode(ids.tolist()).strip() == "snow melts"


@pytest.mark.parametrize("recipe", ["plain", "htp:block=tokens,size=8"])
def test_the_stage_is_the_mean_over_texts_of_its_parts(pair: Pairs, recipe: str) -> None:
    both = pair("llama")
    found = measured(both, SMALL, recipe)
    how = resolved(both.backbone, recipe)
    directions = output_directions(D_MODEL, None, 0)
    curves: dict[tuple[str, str], list[np.ndarray]] = {}
    levels: dict[str, list[tuple[float, float]]] = {}
    # One word alone is too short for the sample.
    for text in TEXTS[:3]:
        batch = encoded(both.backbone, recipe, (text,))
        own = own_tokens(batch, 0)
        grads = sensitivity(both.backbone, batch, how, "final", ("readout", "mean"), directions)
        mixings = block_mixings(both.backbone, batch, how, N_LAYERS)
        sums = path_sums(mixings, [1.0] * N_LAYERS, copies_before(how, batch, N_LAYERS))
        bounds = {"readout": sums[-1], "mean": sums[batch.span[0]].mean(0)}
        for readout in ("readout", "mean"):
            mine, bound = grads[readout][own], bounds[readout][own]
            for source, values in (("autograd", mine), ("attention product", bound)):
                curves.setdefault((readout, source), []).append(density_by_position(values, 4))
            correlation = spearmanr(mine, bound).statistic
            levels.setdefault(readout, []).append((mine.mean(), correlation))
    rows = found.profile.to_pylist()
    assert len(rows) == 16
    for row in rows:
        values = [d[int(row["position"] * 4)] for d in curves[row["readout"], row["source"]]]
        assert row["n_texts"] == 3
        assert row["density"] == pytest.approx(np.mean(values), rel=1e-9)
        assert row["sd"] == pytest.approx(np.std(values, ddof=1), rel=1e-6)
    for row in found.levels.to_pylist():
        expected = np.mean(levels[row["readout"]], axis=0)
        assert (row["sensitivity"], row["rank_correlation"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("model_type", ["llama", "bert", "mpnet"])
def test_the_same_twice_and_from_a_folder(pair: Pairs, model_type: str, tmp_path: Path) -> None:
    both = pair(model_type)
    config = SMALL.model_copy(update={"n_directions": 5, "n_bins": 2})
    found = measured(both, config)
    again = measured(both, config)
    assert found.profile.equals(again.profile)
    other = measured(both, config.model_copy(update={"seed": 1}))
    assert not found.profile.equals(other.profile), "other directions"
    found.save(tmp_path)
    loaded = SensitivityProfile.load(tmp_path)
    assert loaded.profile.equals(found.profile)
    assert loaded.levels.equals(found.levels)
    drawn = {(p.measure, p.x): p.value for p in found.curves.points}
    for row in found.profile.to_pylist():
        name = {"readout": "readout token", "mean": "mean"}[row["readout"]]
        assert drawn[f"{row['source']}, {name}", row["position"]] == row["density"]
    assert len(drawn) == 8


def test_the_mean_depends_on_the_beginning_more_than_the_last_token_does(pair: Pairs) -> None:
    """What HTP derives in appendix A.3, for the bound: every state holds the first tokens, only the last
    ones hold the last. Not a property of weights, so it shows on random ones."""
    rows = measured(pair("llama"), SMALL).profile.to_pylist()
    bound = {
        (row["readout"], row["position"]): row["density"]
        for row in rows
        if row["source"] == "attention product"
    }
    assert bound["mean", 0.125] > bound["readout", 0.125]
    assert bound["mean", 0.875] < bound["readout", 0.875]


def test_layers_are_resolved_or_refused(pair: Pairs) -> None:
    llama, bert = pair("llama").backbone.sizes, pair("bert").backbone.sizes
    assert SensitivityConfig().read_layer(llama) == "final"
    assert SensitivityConfig().read_layer(bert) == N_LAYERS
    assert SensitivityConfig(layer=2).read_layer(llama) == 2
    with pytest.raises(InputError, match="no norm after its last block; use 3"):
        SensitivityConfig(layer="final").read_layer(bert)
    with pytest.raises(InputError, match="layer is 4, but this llama backbone has blocks 1 to 3"):
        SensitivityConfig(layer=4).read_layer(llama)
    with pytest.raises(ValidationError):
        SensitivityConfig.model_validate({"layer": 0})


def test_what_cannot_be_measured_is_refused(pair: Pairs) -> None:
    both = pair("llama")
    with pytest.raises(
        InputError, match="reads the first token, which in llama, a decoder, depends on no"
    ):
        measured(both, SMALL, "plain:readout=first")
    with pytest.raises(InputError, match=r"contrastive replaces the heads.*use another recipe"):
        measured(both, SMALL, "contrastive:block=1")
    with pytest.raises(InputError, match="none of 3 texts has 61 tokens of its own within 60"):
        measured(both, SMALL.model_copy(update={"n_bins": 61}))
    with pytest.raises(InputError, match="none of 4 texts has 99 words"):
        measured(both, SMALL.model_copy(update={"min_words": 99}))
