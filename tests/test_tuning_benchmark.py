"""The benchmark of what training costs: how its table follows from what processes measure."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tuning
from benchmarks.tuned_steps import (
    EXTRACTION,
    HEADS,
    INFERENCE,
    ROWS,
    Spec,
    measure,
    own_peak_of,
    peak_of,
)

TINY = tuning.Size(
    "bert",
    4,
    (1, 2),
    {"full": 1},
    {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48},
)


def test_a_line_goes_through_the_largest_numbers_of_blocks() -> None:
    whole = tuning.at_depth({1: 9.0, 2: 3.0, 12: 5.0}, 12)
    assert (whole.value, whole.is_line, whole.text()) == (5.0, False, "5")
    line = tuning.at_depth({1: 9.0, 2: 3.0, 3: 4.0}, 12)
    assert (line.value, line.is_line, line.text()) == (13.0, True, "~13")
    assert tuning.at_depth({1: 2.0}, 32).value == 64.0


def test_parameters_are_counted_for_the_papers_depth() -> None:
    def by(**one: int) -> dict[int, dict[str, float]]:
        return {int(n[1:]): {"n_backbone": v, "n_block": 218.0} for n, v in one.items()}

    assert tuning.trained(by(_1=5, _2=10), 32, grows=True) == 160
    # All of one block and 7 of what lies around the blocks.
    assert tuning.trained(by(_1=225), 32, grows=True) == 32 * 218 + 7
    assert tuning.trained(by(_1=218), 32, grows=False) == 218


def found() -> tuning.Found:
    """Made up: a block costs 10 s and 1 GB a step, 5 s of them forwards."""
    by_row: tuning.Found = {
        EXTRACTION: {n: {"seconds": 6.0 * n} for n in (1, 2)},
        INFERENCE: {
            n: {
                "seconds": 5.0 * n,
                **dict.fromkeys(HEADS, 0.0),
                "GLOT": 2.0,
                **{peak_of(head): 1e9 * n + 5e8 for head in HEADS},
                **{own_peak_of(head): 1e6 for head in HEADS},
                peak_of("GLOT"): 1e9 * n + 5.6e8,
                own_peak_of("GLOT"): 6e7,
            }
            for n in (1, 2)
        },
    }
    for row, config in ROWS.items():
        grows = config.runs_below
        by_row[row] = {
            n: {
                "seconds": 10.0 * n if grows else 1.0,
                "peak": 1e9 * n if grows else 4e8,
                "n_head": 7.0,
                "n_backbone": 100.0 * n,
                "n_block": 100.0,
            }
            for n in ((1, 2) if grows else (1,))
        }
    return by_row


def test_the_table_and_the_promises_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tuning.SIZES, "tiny", TINY)
    monkeypatch.setitem(tuning.LEAST_TIMES, "tiny", 50.0)
    args = Namespace(rows=[*ROWS, INFERENCE], batch=8, length=16)
    by_row = {line.row: line for line in tuning.lines(args, "tiny", found())}
    lora, cached = by_row["LoRA"], by_row["GLOT, cached"]
    assert (lora.seconds.value, lora.seconds.is_line) == (40.0, True)
    assert lora.gigabytes.value == 4.0
    assert lora.n_backbone == 400
    assert lora.epochs == 24 / 39
    assert (cached.seconds.value, cached.seconds.is_line, cached.epochs) == (1.0, False, None)
    assert by_row["GLOT and last block, cached"].epochs is None
    slow = found()
    slow["MLP, cached"] = {n: {**one, "seconds": 9.0} for n, one in slow["MLP, cached"].items()}
    slower = {line.row: line for line in tuning.lines(args, "tiny", slow)}["MLP, cached"]
    assert slower.seconds.value == 9.0
    assert slower.epochs is None, "it reads stored states itself"
    step, memory = tuning.promised(args, "tiny", found())
    assert (step.value, step.met) == (40.0, False)
    assert "extrapolated" in step.detail
    assert (memory.value, memory.met) == (0.4, True)


def test_inference_has_time_and_memory_of_every_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in GLOT's table 16: 20 s and 4.5 GB at four blocks, of which GLOT adds 2 s and 0.06 GB."""
    monkeypatch.setitem(tuning.SIZES, "tiny", TINY)
    lines = tuning.markdown_of(tuning.inference("tiny", found())).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0][4:] == ["peak with backbone, GB", "head's own, GB"]
    assert [row[0] for row in cells[2:]] == [*HEADS]
    by_head = {row[0]: row[1:] for row in cells[2:]}
    assert by_head["mean"] == ["~20", "0", "~1", "~4.5", "0.001"]
    assert by_head["GLOT"] == ["~20", "2", "~1.1", "~4.56", "0.06"]


@pytest.mark.deep
@pytest.mark.night
def test_memory_of_inference_counts_weights_states_and_what_a_head_takes(tmp_path: Path) -> None:
    """A model of a known size, in a process of its own that gives back what it freed."""
    args = Namespace(batch=32, length=64, steps=1, device="cpu")
    wide = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 8192}
    size = tuning.Size("bert", 2, (2,), {}, {**wide, "max_position_embeddings": 512})
    size.save(tmp_path / "2" / "model", 2)
    taken = tuning._child(args, tmp_path, INFERENCE, 2)  # pyright: ignore[reportPrivateUsage]
    weights = 4 * 2 * (2 * 256 * 8192 + 4 * 256 * 256)
    inner, states = 4 * 32 * 64 * 8192, 4 * 32 * 64 * 256
    for head in HEADS:
        assert taken[head] > 0
        # What lies between two linear layers, once or twice, beside the weights and the states.
        assert weights + inner < taken[peak_of(head)] < weights + 3 * inner + 10 * states
    assert taken[own_peak_of("readout")] < states
    # The outputs of two convolutions of 128 numbers and their concatenation with the states.
    assert states < taken[own_peak_of("GLOT")] < 30 * states


def test_scores_are_means_over_seeds() -> None:
    def summary(method: str, task: str, test: float) -> dict[str, object]:
        return {"method": method, "task": task, "metric": "mcc", "test": test}

    made = tuning.scores(
        [
            *(summary("LoRA", "CoLA", test) for test in (0.1, 0.3)),
            summary("GLOT", "CoLA", 0.5),
            summary("GLOT", "RTE", 0.25),
        ],
        {"CoLA": 600, "RTE": 2241},
    )
    lines = [line.split("|")[1:-1] for line in tuning.markdown_of(made).splitlines()]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0][1:] == ["CoLA, mcc, 600 to train on", "RTE, mcc, 2,241 to train on"]
    assert cells[2:] == [["LoRA", "20.0 ± 14.1 (2)", ""], ["GLOT", "50.0 (1)", "25.0 (1)"]]


def test_there_is_a_batch_for_all_sizes_or_one_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tuning.main(["--sizes", "bert", "--batch", "8", "2"])
    assert ended.value.code == 2
    assert "--batch has 2 numbers for 1 sizes; give 1 or as many" in capsys.readouterr().err


@pytest.mark.deep
def test_every_row_is_measured_by_the_projects_own_trainers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def here(command: list[str], **_: Any) -> Namespace:
        spec = Spec(**json.loads(command[command.index("--child") + 1]))
        return Namespace(stdout=json.dumps(measure(spec)))

    monkeypatch.setitem(tuning.SIZES, "tiny", TINY)
    monkeypatch.setattr(tuning.subprocess, "run", here)
    tuning.main(
        [
            *("--sizes", "tiny", "--batch", "4", "--length", "8", "--device", "cpu", "--json"),
            *("--folder", str(tmp_path)),
        ]
    )
    by_row = json.loads(capsys.readouterr().out)["measured"]["tiny"]
    assert by_row.keys() == {*ROWS, EXTRACTION, INFERENCE, tuning.CACHED_PAPER}
    (larger,), (smaller,) = (by_row[row].values() for row in (tuning.CACHED_PAPER, tuning.CACHED))
    assert larger["n_head"] == smaller["n_head"] > 0
    blocks = {row: {*by} for row, by in by_row.items()}
    assert blocks["LoRA"] == blocks["GLOT and last block, live"] == {"1", "2"}
    assert (
        blocks["GLOT, cached"] == blocks["GLOT and last block, cached"] == blocks["full"] == {"1"}
    )
    assert all(one["seconds"] > 0 for by in by_row.values() for one in by.values())
    trained = {row: by_row[row]["1"]["n_backbone"] for row in ROWS}
    assert trained["GLOT, cached"] == trained["GLOT, on the fly"] == 0
    block = 4 * (32 * 32 + 32) + 2 * 32 * 48 + 48 + 32 + 4 * 32
    assert trained["GLOT and last block, cached"] == trained["GLOT and last block, live"] == block
    assert trained["LoRA"] == 64 * (4 * 64 + 2 * 80)
    assert trained["full"] > block
    assert not [*tmp_path.iterdir()], "models and states are removed"
