"""The benchmark of HTP's rows: what each is measured against, and how its lines follow from that."""

import json
import subprocess
from typing import Any

import pytest

from benchmarks import recipe_costs

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
