"""The benchmark of graph tokens: what it measures, and how its lines follow from that."""

import json
import subprocess
from typing import Any

import pytest

from benchmarks import graph_token
from permafrost.stages.finetune.data import FinetuneData


@pytest.mark.deep
def test_each_line_is_of_both_ways_over_the_same_texts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[FinetuneData] = []
    build = graph_token.build_module
    peaks = {"nothing": 100, "first": 700, "last": 300}
    commands: list[list[str]] = []

    def counted(config: Any, data: FinetuneData) -> Any:
        made.append(data)
        return build(config, data)

    def child(command: list[str], **how: Any) -> Any:
        commands.append(command)
        peak = peaks[command[command.index("--child") + 1]]
        return subprocess.CompletedProcess(command, 0, stdout=f"loading\n{peak}\n")

    monkeypatch.setattr(graph_token, "build_module", counted)
    monkeypatch.setattr(graph_token.subprocess, "run", child)
    sizes = ["--width", "64", "--blocks", "2", "--texts", "4", "--batch", "2", "--rounds", "1"]
    graph_token.main([*sizes, "--words", "4", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    time, size, away, peak, paid = (one["value"] for one in found)
    assert time > 0
    assert paid > 0
    assert peak == (700 - 100) / (300 - 100)
    assert 0 < away < 1e-2, "of states in float16, which has 11 bits"
    assert size == 2 * 64 * 2, "two blocks of 64 numbers in float16"
    assert [data.features.entering is None for data in made] == [True, False]
    first, last = made
    assert [*first.corpus.digests] == [*last.corpus.digests]
    assert len(first.cases("train")) == 4
    assert all(c[c.index("--texts") + 1] == "4" for c in commands)
