"""The benchmark of a fine-tuning's batches: it runs on an experiment's cases, and its versions agree."""

import json
from pathlib import Path

import pytest

from benchmarks import by_length
from tests.flows.paper_data import write_paper_data
from tests.stages.extraction.tiny_models import save_model

ROOT = Path(__file__).parents[1]


@pytest.mark.deep
def test_versions_of_a_step_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PERMAFROST_DATA", str(write_paper_data(tmp_path / "data")))
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    model = save_model("bert", tmp_path / "bert")
    sizes = ("n_train=8", "n_dev=4", "n_test=4")
    settings = [f"backbone={{source: {model}, max_length: 40}}"]
    settings += [f"tasks.WebNLG.{size}" for size in sizes]
    asked = [str(ROOT / "experiments" / "papers" / "gt2vec" / "table3.yaml"), "WebNLG", "--json"]
    asked += ["--batch", "4", "--rounds", "2"]
    by_length.main([*asked, *(part for one in settings for part in ("--set", one))])
    found = {f["what"]: f["value"] for f in json.loads(capsys.readouterr().out)["findings"]}
    for what in ("states", "gradients"):
        assert found[f"distance of {what}, relative, by length"] < 1e-4
        assert 1e-6 < found[f"distance of {what}, relative, bfloat16"] < 0.5
    assert found["tokens padded / real, by length"] <= found["tokens padded / real, one pass"]
    assert found["ms for a token, bfloat16"] > 0
