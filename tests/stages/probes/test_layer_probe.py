"""Scores by layer, against the scores of the same vectors taken one by one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError
from scipy.stats import spearmanr

from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.stages.probes.layer_probe import LayerProbeConfig, LayerScores, probe_layers
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.embed.corpus_features import N_TEXTS, cosine, directions, features, graded

TRUTH = directions(0)
LAYERS = {1: directions(1), 2: TRUTH, 3: TRUTH + 0.5 * directions(3)}
QUIET = SilentProgress()


def segments() -> Corpus:
    """Text i belongs to text i + half."""
    half = N_TEXTS // 2
    columns = {
        "split": ["all"] * half,
        "text": list(range(half)),
        "text_pair": list(range(half, N_TEXTS)),
        "label": [None] * half,
    }
    corpus = graded(TRUTH)
    return replace(corpus, examples=pa.table(columns, schema=EXAMPLES), task="unlabelled")


def scores(found: LayerScores, name: str) -> dict[int, float]:
    rows = found.table.to_pylist()
    return {row["layer"]: row["value"] for row in rows if row["score"] == name}


def test_similarity_is_that_of_each_layers_cosines_on_test() -> None:
    corpus = graded(TRUTH)
    found = probe_layers(LayerProbeConfig(), [features(LAYERS)], corpus, QUIET)
    rows = corpus.split("test")
    first, second = (rows.column(c).to_numpy() for c in ("text", "text_pair"))
    labels = rows.column("label").to_numpy()
    by_layer = scores(found, "Spearman")
    assert by_layer[2] == pytest.approx(1, abs=1e-6)
    for layer, vectors in LAYERS.items():
        expected = spearmanr(cosine(vectors, first, second).round(12), labels).statistic
        assert by_layer[layer] == pytest.approx(expected, abs=1e-3), "cosines in other precision"


def test_matching_finds_the_own_half() -> None:
    """Relation 48: recall grows with k; the final figure of a method is its best layer's."""
    half = N_TEXTS // 2
    same = np.concatenate([TRUTH[:half], TRUTH[:half] + 0.01 * directions(4)[:half]])
    layers = {**LAYERS, 2: same}
    found = probe_layers(LayerProbeConfig(), [features(layers)], segments(), QUIET)
    curves = {k: scores(found, f"recall@{k}") for k in (1, 5, 10)}
    assert curves[1][2] == 1
    assert curves[1][1] < 0.5
    for layer in (1, 2, 3):
        assert curves[1][layer] <= curves[5][layer] <= curves[10][layer]
    mrr = scores(found, "mrr")
    assert max(mrr, key=mrr.__getitem__) == 2


def test_an_ensemble_is_probed_as_its_average() -> None:
    noise = directions(9)
    members = [
        features({k: v + noise for k, v in LAYERS.items()}),
        features({k: v - noise for k, v in LAYERS.items()}),
    ]
    together = probe_layers(LayerProbeConfig(), members, graded(TRUTH), QUIET)
    alone = probe_layers(LayerProbeConfig(), [features(LAYERS)], graded(TRUTH), QUIET)
    for layer, value in scores(alone, "Spearman").items():
        assert scores(together, "Spearman")[layer] == pytest.approx(value, abs=1e-3)


def test_a_text_that_is_right_for_several_is_refused() -> None:
    corpus = segments()
    pairs = corpus.examples.column("text_pair").to_numpy().copy()
    pairs[1] = pairs[0]
    place = corpus.examples.schema.get_field_index("text_pair")
    examples = corpus.examples.set_column(place, "text_pair", pa.array(pairs))
    half = N_TEXTS // 2
    with pytest.raises(
        InputError,
        match=f"the {half} pairs have {half - 1} different second texts, so that one is right",
    ):
        probe_layers(
            LayerProbeConfig(), [features(LAYERS)], replace(corpus, examples=examples), QUIET
        )


def test_a_layer_that_is_the_same_for_all_texts_scores_0_and_the_others_are_scored() -> None:
    same = np.repeat(TRUTH[:1], N_TEXTS, axis=0)
    found = probe_layers(LayerProbeConfig(), [features({**LAYERS, 1: same})], graded(TRUTH), QUIET)
    by_layer = scores(found, "Spearman")
    assert by_layer[1] == 0
    assert by_layer[2] == pytest.approx(1, abs=1e-6)


def test_other_corpora_are_refused_and_scores_survive_a_folder(tmp_path: Path) -> None:
    wrong = replace(graded(TRUTH), task="classification")
    with pytest.raises(InputError, match="this is a classification corpus"):
        probe_layers(LayerProbeConfig(), [features(LAYERS)], wrong, QUIET)
    found = probe_layers(LayerProbeConfig(), [features(LAYERS)], graded(TRUTH), QUIET)
    found.save(tmp_path)
    assert LayerScores.load(tmp_path).table.equals(found.table)


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ("final", "scores layers by their number, and final has none"),
        ("1,last", "and last has none"),
        ("auto", "and auto has none"),
        ("best", "and best has none"),
        ("default", "and default has none"),
        ("foo", "foo"),
    ],
)
def test_layers_without_a_number_are_refused_before_anything_runs(layers: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        LayerProbeConfig(layers=layers)
    assert LayerProbeConfig(layers="1-2,3").embed_config.layers == "1-2,3"
