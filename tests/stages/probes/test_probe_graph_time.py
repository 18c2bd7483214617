"""Times of token graphs: what is timed, how often, and what is refused."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from permafrost.stages.heads import GlotHead
from permafrost.stages.probes import GraphTimeConfig, graph_time, probe_graph_time
from permafrost.stages.probes.graph_time import first_states
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import InMemoryReader
from tests.stages.embed.corpus_features import SIZES
from tests.stages.embed.memory_features import MemoryFeatures
from tests.stages.probes.probe_features import classes
from tests.stages.probes.test_probe_token_graph import neighbours, tokens_of

QUIET = SilentProgress()
LENGTHS = [1, 4, 7, 2, 9, 3]
ROWS = tokens_of(LENGTHS)
CORPUS = classes([0, 1] * 3)


def features() -> MemoryFeatures:
    return MemoryFeatures(SIZES, {"hidden/1": ROWS})


def config(**fields: object) -> GraphTimeConfig:
    given = {"layer": "hidden/1", "lengths": (6, 3), "n_texts": 2, "n_rounds": 3, **fields}
    return GraphTimeConfig.model_validate(given)


def measured(name: str, **fields: object) -> dict[str, float]:
    found = probe_graph_time(config(**fields), [features()], CORPUS, QUIET)
    assert found.axis == "tokens"
    return {p.at: p.value for p in found.points if p.measure == name}


class Clock:
    """Stands still but where something is taken to last."""

    def __init__(self) -> None:
        self.now = 0.0
        self.n_calls: dict[str, int] = {}

    def lasting(
        self, name: str, seconds: list[float], call: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The call, whose n-th of every `len(seconds)` takes the n-th of `seconds`."""

        def timed(*args: Any) -> Any:
            n = self.n_calls.get(name, 0)
            self.n_calls[name] = n + 1
            self.now += seconds[n % len(seconds)]
            return call(*args)

        return timed


def test_a_time_is_the_median_of_its_rounds_for_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    # The first call of every length, which compiles and allocates, is not among the rounds.
    graph = clock.lasting("graph", [100.0, 3.0, 1.0, 2.0], graph_time.build_graph)
    monkeypatch.setattr(graph_time, "build_graph", graph)

    build = GlotHead.build

    def built(*args: Any) -> Callable[..., Any]:
        head = build(*args)
        head.forward = clock.lasting("step", [100.0, 8.0, 7.0, 3.0], head.forward)
        return head

    monkeypatch.setattr(GlotHead, "build", built)
    assert measured("graph, ms") == {"3": 1e3 * 2.0 / 2, "6": 1e3 * 2.0 / 2}
    clock.n_calls.clear()
    assert measured("GLOT's training step, ms") == {"3": 1e3 * 7.0 / 2, "6": 1e3 * 7.0 / 2}
    assert clock.n_calls == {"graph": 2 * 4, "step": 2 * 4}


def test_graphs_and_steps_take_time() -> None:
    assert measured("graph, ms").keys() == {"3", "6"}
    assert min(measured("graph, ms").values()) > 0
    assert min(measured("GLOT's training step, ms").values()) > 0


@pytest.mark.parametrize("tau", [-1.1, 0.35, 1.0])
def test_the_density_is_that_of_the_pieces(tau: float) -> None:
    found = measured("connected pairs", head=GlotHead(tau=tau))
    for length in (3, 6):
        pieces = np.split(ROWS.data[: 2 * length], 2)
        expected = np.mean([neighbours(piece, tau) for piece in pieces])
        assert found[str(length)] == pytest.approx(expected)


@pytest.mark.parametrize("n_tokens", [1, 5, 12, 26, 40])
def test_states_are_the_first_of_the_corpus(n_tokens: int) -> None:
    found = first_states(InMemoryReader("hidden/1", ROWS), n_tokens)
    assert np.array_equal(found.numpy(), ROWS.data[:n_tokens])


def test_a_corpus_with_too_few_tokens_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match=r"2 texts of 14 tokens .* 28 in all, .* has 26"):
        measured("graph, ms", lengths=(14,))


def test_an_ensemble_is_refused() -> None:
    with pytest.raises(InputError, match="2 prompts of an ensemble"):
        probe_graph_time(config(), [features(), features()], CORPUS, QUIET)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layer": "attention_rows/1"}, "has no state per token"),
        ({"lengths": (0, 4)}, "a text of 0 tokens"),
        ({"lengths": ()}, "lengths"),
        ({"n_rounds": 0}, "n_rounds"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**fields)
