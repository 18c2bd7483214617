"""Token graphs by threshold against loops over the tokens of each text."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from permafrost.stages.embed.aggregate import mean_rows
from permafrost.stages.heads.graph.token_graph import edges
from permafrost.stages.probes import ProbeCurves, TaskScoreConfig, TokenGraphConfig, probe_task
from permafrost.stages.probes.token_graph import one_step, probe_token_graph
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged, offsets_of
from permafrost.storage.readers import InMemoryReader
from tests.stages.embed.corpus_features import SIZES
from tests.stages.embed.memory_features import MemoryFeatures
from tests.stages.probes.probe_features import classes, pooled, with_labels

QUIET = SilentProgress()
LENGTHS = [1, 4, 7, 2, 9, 3]


def tokens_of(lengths: list[int], seed: int = 0, width: int = 4) -> Ragged:
    rows = np.random.default_rng(seed).normal(0.4, 1, (sum(lengths), width))
    return Ragged(rows.astype(np.float32), offsets_of(np.array(lengths)))


def neighbours(tokens: np.ndarray, tau: float) -> np.ndarray:
    """The graph of one text, by its definition: cosine strictly above tau, and oneself."""
    unit = tokens.astype(float) / np.linalg.norm(tokens.astype(float), axis=1, keepdims=True)
    graph = unit @ unit.T > tau
    np.fill_diagonal(graph, True)
    return graph


def components(graph: np.ndarray) -> int:
    """Connected components, by walking."""
    left, found = set(range(len(graph))), 0
    while left:
        stack = [left.pop()]
        found += 1
        while stack:
            near = {int(j) for j in np.flatnonzero(graph[stack.pop()])} & left
            left -= near
            stack.extend(near)
    return found


@pytest.mark.parametrize("tau", [-2.0, -0.3, 0.0, 0.35, 0.7, 0.95, 1.0])
def test_statistics_and_vectors_are_those_of_loops(tau: float) -> None:
    rows = tokens_of(LENGTHS)
    found, vectors = one_step(InMemoryReader("hidden/1", rows), tau, QUIET)
    graphs = [neighbours(text, tau) for text in rows]
    degrees = np.concatenate([graph.sum(axis=1) - 1 for graph in graphs])
    n_pairs = sum(n * (n - 1) for n in LENGTHS)
    assert found.mean_degree == pytest.approx(degrees.mean())
    assert found.density == pytest.approx(degrees.sum() / n_pairs)
    assert found.isolated == pytest.approx(np.mean(degrees == 0))
    assert found.components == pytest.approx(np.mean([components(g) for g in graphs]))
    for text, graph, vector in zip(rows, graphs, vectors, strict=True):
        averaged = [text[graph[i]].astype(float).mean(axis=0) for i in range(len(text))]
        assert vector == pytest.approx(np.mean(averaged, axis=0), abs=1e-6)


def test_the_graph_is_the_one_that_glot_builds() -> None:
    rows = tokens_of(LENGTHS, seed=3)
    torch_edges = edges(torch.from_numpy(rows.data), torch.from_numpy(rows.offsets), 0.4)
    found, _ = one_step(InMemoryReader("hidden/1", rows), 0.4, QUIET)
    assert found.mean_degree == torch_edges.shape[1] / len(rows.data) - 1


def test_without_edges_and_with_all_of_them_a_text_is_its_plain_mean() -> None:
    rows = tokens_of(LENGTHS, seed=1)
    reader, plain = InMemoryReader("hidden/1", rows), mean_rows(rows)
    for tau, density in ((1.0, 0.0), (-1.5, 1.0)):
        found, vectors = one_step(reader, tau, QUIET)
        assert found.density == density
        assert vectors == pytest.approx(plain, abs=1e-6)
    between = one_step(reader, 0.3, QUIET)[1]
    assert np.abs(between - plain).max() > 0.01


def test_statistics_fall_or_rise_with_tau() -> None:
    """Relation 6: the edges at a higher tau are among those at a lower one."""
    reader = InMemoryReader("hidden/1", tokens_of([8] * 20, seed=2))
    found = [one_step(reader, tau, QUIET)[0] for tau in np.linspace(-1.1, 1, 12)]
    for low, high in pairwise(found):
        assert high.density <= low.density
        assert high.mean_degree <= low.mean_degree
        assert high.components >= low.components
        assert high.isolated >= low.isolated
    assert (found[0].components, found[-1].components) == (1, 8)


def test_one_token_is_a_graph_of_its_own() -> None:
    found, vectors = one_step(InMemoryReader("hidden/1", tokens_of([1, 1])), 0.0, QUIET)
    assert (found.mean_degree, found.density, found.components, found.isolated) == (0, 0, 1, 1)
    assert np.array_equal(vectors, tokens_of([1, 1]).data)


def features(rows: Ragged) -> MemoryFeatures:
    return MemoryFeatures(SIZES, {"hidden/2": rows})


LABELS = [0, 1] * 45


def planted() -> Ragged:
    """Texts of class 1 repeat one direction, which an average over neighbours weighs more."""
    rng = np.random.default_rng(8)
    texts = [rng.normal(size=(6, 4)) for _ in LABELS]
    for text, label in zip(texts, LABELS, strict=True):
        text[: 2 + label] += 2.5
    return Ragged.from_arrays([text.astype(np.float32) for text in texts])


def test_every_tau_is_scored_and_dev_chooses() -> None:
    corpus, config = classes(LABELS), TokenGraphConfig(layer="hidden/2", tau=(0.9, 0.1, 1.0, 0.5))
    found = probe_token_graph(config, [features(planted())], corpus, QUIET)
    assert found.axis == "tau"
    curves: dict[str, list[float]] = {}
    for point in found.points:
        curves.setdefault(point.measure, []).append(point.value)
    assert [p.x for p in found.points if p.measure == "density"] == [0.1, 0.5, 0.9, 1.0]
    for i, tau in enumerate((0.1, 0.5, 0.9, 1.0)):
        reader = InMemoryReader("hidden/2", planted())
        statistics, vectors = one_step(reader, tau, QUIET)
        assert curves["density"][i] == statistics.density
        assert curves["mean degree"][i] == statistics.mean_degree
        assert curves["components of a text"][i] == statistics.components
        assert curves["isolated tokens"][i] == statistics.isolated
        # The same vectors as a layer of their own.
        layer = pooled({2: vectors})
        alone = probe_task(TaskScoreConfig(layers="2"), [layer], corpus, QUIET)
        assert [p.value for p in alone.points] == [
            curves["dev accuracy"][i],
            curves["test accuracy"][i],
        ]
    best = max(range(4), key=lambda i: (curves["dev accuracy"][i], -i))
    assert found.choice == {
        "tau": f"{(0.1, 0.5, 0.9, 1.0)[best]:g}",
        "dev accuracy": curves["dev accuracy"][best],
        "test accuracy": curves["test accuracy"][best],
    }


def test_the_choice_does_not_see_test() -> None:
    corpus, config = classes(LABELS), TokenGraphConfig(layer="hidden/2")
    found = probe_token_graph(config, [features(planted())], corpus, QUIET)
    turned = with_labels(corpus, "test", [1.0 - y for y in LABELS[60:]])
    other = probe_token_graph(config, [features(planted())], turned, QUIET)
    assert found.choice["tau"] == other.choice["tau"]
    assert found.choice["dev accuracy"] == other.choice["dev accuracy"]
    assert found.choice["test accuracy"] != other.choice["test accuracy"]


def test_texts_without_labels_have_statistics_only(tmp_path: Path) -> None:
    corpus = replace(classes(LABELS), task="unlabelled")
    config = TokenGraphConfig(layer="hidden/2", tau=(0.5,))
    found = probe_token_graph(config, [features(planted())], corpus, QUIET)
    assert [p.measure for p in found.points] == [
        "density",
        "mean degree",
        "components of a text",
        "isolated tokens",
    ]
    assert found.choice == {}
    found.save(tmp_path)
    assert ProbeCurves.load(tmp_path) == found


def test_what_has_no_graph_is_refused() -> None:
    config, corpus = TokenGraphConfig(layer="hidden/2"), classes(LABELS)
    with pytest.raises(InputError, match="2 prompts of an ensemble"):
        probe_token_graph(config, [features(planted())] * 2, corpus, QUIET)
    empty = tokens_of([2, 0, 3])
    with pytest.raises(InputError, match="text 1 has no token in its span"):
        probe_token_graph(config, [features(empty)], corpus, QUIET)
    with pytest.raises(InputError, match="has hidden 0 to 3"):
        TokenGraphConfig(layer="hidden/9").arrays(SIZES)
    assert config.arrays(SIZES) == ("hidden/2",)
    for layer in ("pooled/hidden_mean/2", "attention_rows/2"):
        with pytest.raises(ValidationError, match="no state per token"):
            TokenGraphConfig(layer=layer)
    with pytest.raises(ValidationError, match="finite"):
        TokenGraphConfig(layer="hidden/2", tau=(float("nan"),))
