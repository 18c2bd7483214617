"""The benchmark of recipes' rows: what each is measured against, and how its lines follow from that."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recipe_costs
from benchmarks.recipe_costs import Row
from permafrost.stages.extraction.backbone import BackboneConfig, find_backbone, load_backbone
from tests.stages.extraction.tiny_models import save_model

PEAKS = {"mean": 100, "Echo": 400, "TP mean": 104, "HTP": 115}


@pytest.mark.deep
def test_each_line_is_of_a_row_over_the_plain_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def child(command: list[str], **how: Any) -> Any:
        commands.append(command)
        peak = PEAKS[command[command.index("--child") + 1]]
        return subprocess.CompletedProcess(command, 0, stdout=f"loading\n{peak}\n")

    monkeypatch.setattr(recipe_costs.subprocess, "run", child)
    recipe_costs.main(["--lengths", "32", "--texts", "1", "--rounds", "1", "--json"])
    found = {f["what"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert len(commands) == len(PEAKS)
    assert {*found} == {
        f"32 tokens: {what}, {name} / mean"
        for what in ("time", "memory")
        for name in ("Echo", "TP mean", "HTP")
    }
    for name in ("Echo", "TP mean", "HTP"):
        assert found[f"32 tokens: memory, {name} / mean"]["value"] == PEAKS[name] / 100
        assert found[f"32 tokens: time, {name} / mean"]["value"] > 0
    # The text twice, a placeholder, and two for each of four sentences of ten words or fewer.
    detail = found["32 tokens: time, Echo / mean"]["detail"]
    assert int(detail.split("; ")[1].split(" / ")[0]) > 60


def test_an_ensemble_reads_the_texts_under_every_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """VA's table 1: values of the deep half against eight prompts."""
    model = save_model("llama", tmp_path / "llama", max_position_embeddings=512)
    child = subprocess.CompletedProcess([], 0, stdout="7\n")
    monkeypatch.setattr(recipe_costs.subprocess, "run", lambda *_, **__: child)
    asked = ["--paper", "va", "--lengths", "16", "--texts", "1", "--rounds", "1", "--json"]
    recipe_costs.main([*asked, "--backbone", str(model)])
    found = {f["what"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert {*found} == {
        f"16 tokens: {what}, {name} / VA"
        for what in ("time", "memory")
        for name in ("PromptEOL", "MetaEOL")
    }
    detail = found["16 tokens: time, MetaEOL / VA"]["detail"]
    asked_of, own = map(int, re.findall(r"(\d+) / (\d+) tokens", detail)[0])
    assert asked_of > 8 * own
    assert "the paper: 8" in detail


def test_values_are_of_the_deep_half(tmp_path: Path) -> None:
    model = save_model("llama", tmp_path / "llama", max_position_embeddings=512)
    files = find_backbone(BackboneConfig(source=str(model)))
    backbone = load_backbone(files, "float32", "cpu")
    rows = {name: Row(backbone, kind, 1, 4) for name, kind in recipe_costs.ROWS["va"].items()}
    n, half = backbone.sizes.n_layers, backbone.sizes.n_layers // 2
    deep = tuple(f"pooled/values_mean/{block}" for block in range(n - half + 1, n + 1))
    assert tuple(rows["VA"].arrays)[-len(deep) :] == deep
    assert tuple(rows["MetaEOL"].arrays) == ("pooled/hidden_last/final",)
    assert [len(row.prompts) for row in rows.values()] == [1, 1, 8]
