"""The benchmarks of a fine-tuning's batches: they run on an experiment's cases, and versions agree."""

import json
from pathlib import Path

import pytest

from benchmarks import by_length, half_precision
from tests.flows.paper_data import write_paper_data
from tests.stages.extraction.tiny_models import save_model

ROOT = Path(__file__).parents[1]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A small experiment as the command line names it."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PERMAFROST_DATA", str(write_paper_data(tmp_path / "data")))
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    model = save_model("bert", tmp_path / "bert")
    settings = [f"backbone={{source: {model}, max_length: 40}}"]
    settings += [f"tasks.WebNLG.{size}" for size in ("n_train=8", "n_dev=4", "n_test=4")]
    file = ROOT / "experiments" / "papers" / "gt2vec" / "table3.yaml"
    return [
        *(str(file), "WebNLG", "--json", "--batch", "4"),
        *(part for one in settings for part in ("--set", one)),
    ]


@pytest.mark.deep
def test_versions_of_a_step_agree(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    by_length.main([*asked, "--rounds", "2"])
    found = {f["what"]: f["value"] for f in json.loads(capsys.readouterr().out)["findings"]}
    for what in ("states", "gradients"):
        assert found[f"distance of {what}, relative, by length"] < 1e-4
        assert 1e-6 < found[f"distance of {what}, relative, bfloat16"] < 0.5
    assert 1e-6 < found["distance of a text's gradient, median, bfloat16"] < 0.5
    assert found["tokens padded / real, by length"] <= found["tokens padded / real, one pass"]
    assert found["tokens padded / real, by length"] <= found["tokens padded / real, bfloat16"]
    assert found["ms for a token, bfloat16"] > 0


@pytest.mark.deep
@pytest.mark.night
def test_steps_in_half_precision_are_measured_at_both_ends(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    half_precision.main([*asked, "--rounds", "4"])
    found = {f["what"]: f["value"] for f in json.loads(capsys.readouterr().out)["findings"]}
    last = {name: found[f"ms for a token at the end, {name}"] for name in half_precision.VERSIONS}
    ratio = last["every size"] / last["few sizes"]
    assert found["processor time at the end, every size / few sizes"] == pytest.approx(ratio)
    assert min(found.values()) > 0
