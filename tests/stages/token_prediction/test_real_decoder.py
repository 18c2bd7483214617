"""Optional: a trained decoder on WikiText-2 (PERMAFROST_DATA and PERMAFROST_MODELS)."""

from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest
import torch

from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.recipes import parse_recipe, resolve_recipe
from permafrost.stages.sensitivity import SensitivityConfig, measure_sensitivity
from permafrost.stages.token_prediction import LogitLensConfig, logit_lens
from permafrost.storage.progress import SilentProgress
from tests.real_files import DATA, MODELS, needs_both
from tests.stages.token_prediction.causal_models import load_causal

QUIET = SilentProgress()

pytestmark = needs_both


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    folder = MODELS / "mixed6m-gqa"
    return load_backbone(find_backbone(BackboneConfig(source=str(folder))), "float32", "cpu")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    table = pq.read_table(DATA / "wikitext2" / "valid.parquet")
    return [text for text in table.column("text").to_pylist() if text.strip()]


@pytest.mark.deep
def test_the_last_layer_is_the_language_model_and_later_layers_know_more(
    backbone: Backbone, texts: list[str]
) -> None:
    config = LogitLensConfig(n_texts=4, min_words=64, offsets=(1, 3))
    recipe = resolve_recipe(parse_recipe("plain"), backbone.sizes)
    found = logit_lens(config, backbone, recipe, 128, texts, QUIET).table.to_pylist()
    model = load_causal(backbone.files.folder)
    reciprocal: list[float] = []
    for text in choose_texts(texts, config):
        ids = torch.tensor(backbone.tokenizer(text)["input_ids"][:128])
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0].float()
        for t, target in enumerate(ids[1:].tolist()):
            rank = int((logits[t] >= logits[t, target]).sum())
            reciprocal.append(1 / rank if rank <= 100 else 0.0)
    mrr = {(row["layer"], row["offset"]): row["mrr"] for row in found}
    n = {row["n"] for row in found if row["offset"] == 1}
    assert n == {len(reciprocal)}
    # One rank that rounding moves changes the mean by less than half of 1 / n.
    expected = sum(reciprocal) / len(reciprocal)
    assert mrr[6, 1] == pytest.approx(expected, abs=0.5 / len(reciprocal))
    assert mrr[0, 1] < mrr[1, 1] < mrr[4, 1] < mrr[6, 1]
    assert mrr[6, 3] < mrr[6, 1] / 2


@pytest.mark.deep
def test_the_last_token_hangs_on_the_end_and_the_mean_on_the_beginning(
    backbone: Backbone, texts: list[str]
) -> None:
    """HTP, section 3.1 and appendix A.3, and that prepending flattens the mean's dependence."""
    config = SensitivityConfig(n_texts=4, min_words=64, n_directions=8, n_bins=4)

    def densities(name: str) -> Iterator[tuple[tuple[str, str], list[float]]]:
        recipe = resolve_recipe(parse_recipe(name), backbone.sizes)
        rows = measure_sensitivity(config, backbone, recipe, 256, texts, QUIET).profile.to_pylist()
        for key in {(row["readout"], row["source"]) for row in rows}:
            yield key, [r["density"] for r in rows if (r["readout"], r["source"]) == key]

    plain, htp = dict(densities("plain")), dict(densities("htp"))
    for source in ("autograd", "attention product"):
        last, mean = plain["readout", source], plain["mean", source]
        assert last[-1] == max(last)
        assert mean == sorted(mean, reverse=True)
        flatter = htp["mean", source]
        assert flatter[0] / flatter[-1] < mean[0] / mean[-1]
