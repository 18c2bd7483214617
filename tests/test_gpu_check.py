"""The GPU check: quiet where there is no GPU, and failed checks fail the command."""

import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.measuring import Finding


def test_without_a_gpu_it_says_so_and_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_check, "run_tests", lambda: pytest.fail("there is nothing to check"))
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert gpu_check.main() == 0
    assert "no CUDA device" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "said"), [(0, "tests/gpu passed"), (1, "tests/gpu FAILED")])
def test_the_table_says_how_the_checks_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, said: str
) -> None:
    out = tmp_path / "table.md"
    monkeypatch.setattr(gpu_check, "run_tests", lambda: status)
    monkeypatch.setattr(gpu_check, "measured", lambda *_: [Finding("a step", 6.5, ">= 5", "2 ms")])
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu", "--out", str(out)])
    assert gpu_check.main() == status
    table = out.read_text()
    assert said in table
    assert "| a step | 6.5 " in table
