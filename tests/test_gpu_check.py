"""The GPU check: quiet where there is no GPU, and failed checks fail the command."""

import copy
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.measuring import Finding
from permafrost.stages.heads import HeadConfig
from tests.gpu.agreement import HEADS, LENGTHS, WIDTH, differing, further_off, outcome
from tests.stages.heads.batches import make_batch


def test_without_a_gpu_it_says_so_and_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_check, "run_tests", lambda _: pytest.fail("there is nothing to check"))
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert gpu_check.main() == 0
    assert "no CUDA device" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "said"), [(0, "tests/gpu passed"), (1, "tests/gpu FAILED")])
def test_the_table_says_how_the_checks_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, said: str
) -> None:
    out = tmp_path / "table.md"
    tested: list[str] = []
    monkeypatch.setattr(gpu_check, "run_tests", lambda device: (tested.append(device), status)[1])
    monkeypatch.setattr(gpu_check, "measured", lambda *_: [Finding("a step", 6.5, ">= 5", "2 ms")])
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu", "--out", str(out)])
    assert gpu_check.main() == status
    assert tested == ["cpu"]
    table = out.read_text()
    assert said in table
    assert "| a step | 6.5 " in table


@pytest.mark.parametrize("config", HEADS, ids=str)
def test_rounding_alone_is_no_difference_and_more_is(config: HeadConfig) -> None:
    """Float64 rounds elsewhere, as a GPU does."""
    head = config.build(WIDTH, torch.Generator().manual_seed(0))
    tokens, offsets = make_batch(LENGTHS, WIDTH, dtype=torch.float32)
    wide = outcome(copy.deepcopy(head).double(), tokens.double(), offsets)
    assert not differing(outcome(head, tokens, offsets), wide)
    for name, value in wide.items():
        scale = max(float(v.abs().max()) for v in wide.values())
        found = differing({**wide, name: value + 1e-3 * scale}, wide)
        assert [line.split(" by ")[0] for line in found] == [name]


def test_a_device_may_round_as_much_as_the_other_and_no_more() -> None:
    draw = torch.Generator().manual_seed(0)
    exact = {n: torch.randn(40, 8, generator=draw) for n in ("hidden/1", "attention_rows/1")}

    def rounded(share: float) -> dict[str, torch.Tensor]:
        return {n: v + share * torch.randn(v.shape, generator=draw) for n, v in exact.items()}

    assert not further_off(rounded(0.05), rounded(0.05), exact, 1e-6)
    assert not further_off(rounded(1e-7), exact, exact, 1e-6), "where the other one is exact"
    found = further_off(rounded(0.5), rounded(0.05), exact, 1e-6)
    assert [line.split(" by ")[0] for line in found] == list(exact)
    broken = {**exact, "hidden/1": exact["hidden/1"] * torch.nan}
    assert [line.split(" by ")[0] for line in further_off(broken, exact, exact, 1e-6)] == [
        "hidden/1"
    ]
