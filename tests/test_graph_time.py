"""The benchmark of token graphs by length: on which states, and what it refuses."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from transformers import AutoModel, AutoTokenizer

from benchmarks.graph_time import Inference, chosen_store, first_states, main
from permafrost.flows.methods.probes import ProbeConfig
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime, resolve_target
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.tiny_models import WORDS, save_model
from tests.stages.probes.test_probe_token_graph import neighbours
from tests.storage.small_store import SmallStore, as_float32, filled_store


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


def test_states_in_bfloat16_are_numbers_and_not_their_bits(tmp_path: Path) -> None:
    made = filled_store(tmp_path, whole_span=True, dtype="bfloat16")
    (first, *_) = made.store.segment(made.store.segments()[0]).table.column("text").to_pylist()
    expected = as_float32(made.rows["hidden/1"][first], "bfloat16")
    found = first_states(made.store, "hidden/1", len(expected)).numpy()
    assert np.array_equal(found, expected)
    assert np.abs(found).max() < 10


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


@pytest.fixture(scope="module")
def of_gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A home with a few texts of a tiny GPT-2, and the model."""
    folder = tmp_path_factory.mktemp("decoder")
    model = save_model("gpt2", folder / "gpt2")
    config = ExtractConfig(
        backbone=BackboneConfig(source=str(model)), capture=parse_capture("hidden=half")
    )
    texts = [" ".join(WORDS[i : i + 5]) for i in range(20)]
    digests = [text_digest(text) for text in texts]
    runtime, silent = ExtractRuntime(device="cpu"), SilentProgress()
    extract(resolve_target(config), folder / "home", texts, digests, runtime, silent)
    return folder / "home", model


def test_the_graph_is_set_against_a_whole_inference(
    of_gpt2: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, model = of_gpt2
    asked = ["--layer", "hidden/3", "--lengths", "8", "--texts", "3", "--rounds", "2", "--json"]
    main([str(home), *asked, "--backbone", str(model)])
    step, whole = json.loads(capsys.readouterr().out)["findings"]
    assert step["what"] == "8 tokens: graph / whole GLOT step"
    assert whole["what"] == "8 tokens: graph / whole inference"
    assert 0 < whole["value"] < 1


def test_states_of_an_inference_are_those_of_the_model(of_gpt2: tuple[Path, Path]) -> None:
    home, model = of_gpt2
    store = chosen_store(home, "hidden/3", None)
    inference = Inference(store, "hidden/3", str(model), 24)
    reference = AutoModel.from_pretrained(model).eval()
    ids = torch.from_numpy(inference.ids[8:16]).long()[None]
    with torch.no_grad():
        expected = reference(ids, output_hidden_states=True).hidden_states
    # The model's own list has the final norm in its last entry; block 3 of 3 is before it.
    normed = reference.ln_f(inference.states(1, 8))
    torch.testing.assert_close(normed, expected[-1][0], rtol=1e-4, atol=1e-5)
    first = store.segment(store.segments()[0]).table.column("text").to_pylist()[0]
    tokenizer = AutoTokenizer.from_pretrained(model)
    own = tokenizer(first).input_ids
    assert inference.ids[: len(own)].tolist() == own[:24]


def test_another_backbone_and_a_length_beyond_it_are_refused(
    of_gpt2: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    home, model = of_gpt2
    other = save_model("llama", tmp_path / "other")
    asked = [str(home), "--layer", "hidden/3", "--texts", "1"]
    for source, length, says in (
        (other, "8", r"has the weights \w{12} and .* is of \w{12}; name the backbone"),
        (model, "80", r"texts of 80 tokens were asked for and the backbone reads \d+; lower"),
    ):
        with pytest.raises(SystemExit) as end:
            main([*asked, "--lengths", length, "--backbone", str(source)])
        assert end.value.code == 2
        assert re.search(says, capsys.readouterr().err)
    store = chosen_store(home, "hidden/2", None)
    with pytest.raises(InputError, match=r"--layer is hidden/2, after which .* hidden/3 or hidden"):
        Inference(store, "hidden/2", str(model), 8)


def test_the_probe_that_it_was_is_refused_with_the_command() -> None:
    section = {"kind": "graph_time", "tasks": ["a"], "methods": {"6": {"layer": "hidden/6"}}}
    with pytest.raises(ValidationError, match=r"python -m benchmarks\.graph_time HOME"):
        TypeAdapter(ProbeConfig).validate_python(section)
    layers = TypeAdapter(ProbeConfig).validate_python({"tasks": ["a"], "methods": {"6": {}}})
    assert layers.kind == "layers"
