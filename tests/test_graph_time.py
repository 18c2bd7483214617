"""The benchmark of token graphs by length: on which states, and what it refuses."""

import json
import re

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from benchmarks.graph_time import first_states, main
from permafrost.flows.methods.probes import ProbeConfig
from tests.stages.probes.test_probe_token_graph import neighbours
from tests.storage.small_store import SmallStore, filled_store


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    return filled_store(tmp_path_factory.mktemp("home"), whole_span=True)


def states(small: SmallStore) -> np.ndarray:
    """Of every text, in the order of the store."""
    tables = [small.store.segment(s).table for s in small.store.segments()]
    texts = [text for table in tables for text in table.column("text").to_pylist()]
    return np.concatenate([small.expected("hidden/1", text) for text in texts]).astype(np.float32)


@pytest.mark.parametrize("n_tokens", [1, 40, 200])
def test_states_are_the_first_of_the_store(small: SmallStore, n_tokens: int) -> None:
    found = first_states(small.store, "hidden/1", n_tokens)
    assert np.array_equal(found.numpy(), states(small)[:n_tokens])


def test_every_length_has_its_ratio_and_its_density(
    small: SmallStore, capsys: pytest.CaptureFixture[str]
) -> None:
    home = str(small.store.root.parents[1])
    asked = ["--layer", "hidden/1", "--lengths", "6", "3", "--texts", "2", "--rounds", "2"]
    main([home, *asked, "--tau", "0.1", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [f["what"].split(":")[0] for f in findings] == ["3 tokens", "6 tokens"]
    for length, finding in zip((3, 6), findings, strict=True):
        assert finding["value"] > 0
        pieces = np.split(states(small)[: 2 * length], 2)
        expected = np.mean([neighbours(piece, 0.1) for piece in pieces])
        (share,) = re.findall(r"([\d.]+)% of the pairs", finding["detail"])
        assert float(share) == pytest.approx(100 * expected, abs=0.05)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--layer", "hidden/1", "--lengths", "4000"], r"32000 token states .* has \d+; lower"),
        (["--layer", "hidden/9"], r"0 feature stores .* hold hidden/9 \(none\)"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    small: SmallStore, asked: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(small.store.root.parents[1]), *asked])
    assert end.value.code == 2
    assert re.search(says, capsys.readouterr().err)


def test_the_probe_that_it_was_is_refused_with_the_command() -> None:
    section = {"kind": "graph_time", "tasks": ["a"], "methods": {"6": {"layer": "hidden/6"}}}
    with pytest.raises(ValidationError, match=r"python -m benchmarks\.graph_time HOME"):
        TypeAdapter(ProbeConfig).validate_python(section)
    layers = TypeAdapter(ProbeConfig).validate_python({"tasks": ["a"], "methods": {"6": {}}})
    assert layers.kind == "layers"
