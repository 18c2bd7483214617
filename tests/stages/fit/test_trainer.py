"""The training loop, on models small enough to follow by hand."""

import tracemalloc
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from permafrost.stages.fit.checkpoint import Checkpoint, train_resumably
from permafrost.stages.fit.trainer import Best, Plan, Trainee, Trainer, shuffled_batches
from permafrost.storage.errors import PermafrostError
from permafrost.storage.progress import SilentProgress

STAGES = Path(__file__).parents[3] / "stages"


class Planted(Trainee[nn.ParameterDict, int]):
    """Each step moves every weight by one; dev says what it is told to say, epoch by epoch."""

    def __init__(self, scores: Sequence[Sequence[float] | None], n_steps: int = 2) -> None:
        self.scores, self.n_steps, self.n_asked = scores, n_steps, 0
        self.n_asked_before = 0
        self.n_parts = next(len(s) for s in scores if s is not None)
        self.model = nn.ParameterDict({"w": torch.zeros(self.n_parts)})
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)

    def batches(self, epoch: int) -> range:
        return range(self.n_steps)

    def loss(self, batch: int) -> tuple[Tensor, int]:
        return -self.model["w"], batch + 1

    def dev(self) -> Sequence[float] | None:
        self.n_asked += 1
        return self.scores[self.n_asked - 1]

    def keep(self, kept: dict[str, Tensor], parts: Sequence[int]) -> None:
        if not kept:
            super().keep(kept, parts)
        for part in parts:
            kept["w"][part] = self.model["w"].detach()[part]

    def state(self) -> dict[str, Any]:
        return {"n_asked": self.n_asked}

    def restore(self, state: dict[str, Any]) -> None:
        self.n_asked_before = state["n_asked"]

    def broken(self, what: str, part: int, value: float) -> PermafrostError:
        return PermafrostError(f"{what}: {value} of part {part}")


def train(
    scores: Sequence[Sequence[float] | None], **plan: object
) -> Trainer[nn.ParameterDict, int]:
    given = {"n_epochs": len(scores), "n_steps": 2, **plan}
    return Trainer(Planted(scores), Plan(**given)).run(SilentProgress())  # type: ignore[arg-type]


def test_there_is_one_training_loop() -> None:
    loops = [p for p in STAGES.rglob("*.py") if ".backward()" in p.read_text()]
    assert loops == [STAGES / "fit" / "trainer.py"]


def test_losses_rates_and_weights_are_those_of_a_loop_by_hand() -> None:
    trainer = train([[0.1], [0.2]], rate=lambda step: 1.0 + step)
    # Weights before each step: 0, 1, 3, 6; examples 1, 2, 1, 2.
    assert [(s.epoch, s.step, s.losses, s.n_examples, s.lr) for s in trainer.log] == [
        (1, 1, (0.0,), 1, 1.0),
        (1, 2, (-1.0,), 2, 2.0),
        (2, 3, (-3.0,), 1, 3.0),
        (2, 4, (-6.0,), 2, 4.0),
    ]
    assert [e.losses for e in trainer.history] == [(-2 / 3,), (-5.0,)]
    assert trainer.kept["w"].tolist() == [10.0]


@pytest.mark.parametrize(
    ("scores", "patience", "n_epochs"),
    [
        ([0.5, 0.5, 0.9], 1, 2),  # equal is no better
        ([0.5, 0.4, 0.5, 0.9], 2, 3),
        ([0.5, 0.4, 0.6, 0.4, 0.4, 0.9], 2, 5),
        ([0.5, 0.4, 0.3, 0.2, 0.1], None, 5),
    ],
)
def test_patience_counts_epochs_since_the_best(
    scores: list[float], patience: int | None, n_epochs: int
) -> None:
    trainer = train([[s] for s in scores], patience=patience)
    assert len(trainer.history) == n_epochs
    best = max(scores[:n_epochs])
    assert trainer.best == [Best(scores.index(best) + 1, best)]
    assert trainer.kept["w"].tolist() == [2.0 * trainer.best[0].epoch]


def test_each_part_keeps_its_own_best_epoch() -> None:
    trainer = train([[0.1, 0.9], [0.3, 0.2], [0.2, 0.9]])
    assert trainer.best == [Best(2, 0.3), Best(1, 0.9)]
    assert trainer.kept["w"].tolist() == [4.0, 2.0]


def test_dev_is_looked_at_every_few_epochs_and_at_the_end() -> None:
    trainer = train([[0.5], None, [0.4]], n_epochs=5, evaluate_every=2)
    assert [e.dev for e in trainer.history] == [None, (0.5,), None, None, (0.4,)]
    assert trainer.best == [Best(2, 0.5)]


@pytest.mark.parametrize("place", ["loss", "dev"])
def test_what_is_not_finite_is_named_and_nothing_of_it_recorded(place: str) -> None:
    trainee = Planted([[0.1, 0.1], [0.2, float("nan")]])
    trainer = Trainer(trainee, Plan(2, 2))
    says = "on dev after epoch 2: nan of part 1"
    if place == "loss":
        trainee.scores = [[0.1, 0.1], [0.2, 0.2]]
        trainee.model["w"].data[1] = float("inf")
        says = "at epoch 1, step 0: -inf of part 1"
    with pytest.raises(PermafrostError, match=says):
        trainer.run(SilentProgress())
    assert len(trainer.history) == (0 if place == "loss" else 1)
    assert len(trainer.log) == 2 * len(trainer.history)


def test_a_trainer_goes_on_from_a_saved_state() -> None:
    scores = [[0.5], [0.4], [0.7], [0.6]]
    whole = train(scores)
    states = []
    first = Trainer(Planted(scores), Plan(4, 2))
    first.run(
        SilentProgress(),
        lambda: states.append(
            first.state_dict()
            | {"model": {k: v.clone() for k, v in first.trainee.model.state_dict().items()}}
        ),
    )
    later = Trainer(Planted(scores[2:]), Plan(4, 2))
    later.load_state_dict(states[1])
    assert len(later.history) == 2
    later.run(SilentProgress())
    assert (later.history, later.log, later.best) == (whole.history, whole.log, whole.best)
    assert torch.equal(later.kept["w"], whole.kept["w"])


@pytest.mark.parametrize("saved", [0, 3, 5])
def test_a_trainer_goes_on_in_the_middle_of_an_epoch(saved: int) -> None:
    scores = [[0.5], [0.4], [0.7]]
    whole = Trainer(Planted(scores, n_steps=3), Plan(3, 3)).run(SilentProgress())
    states: list[dict[str, Any]] = []
    first = Trainer(Planted(scores, n_steps=3), Plan(3, 3))
    first.run(SilentProgress(), after_step=lambda: states.append(deepcopy(first.state_dict())))
    assert len(states) == 6, "after two of an epoch's three steps"
    n_epochs, n_steps = saved // 2, saved % 2 + 1
    trainee = Planted(scores[n_epochs:], n_steps=3)
    later = Trainer(trainee, Plan(3, 3))
    later.load_state_dict(states[saved])
    assert (len(later.history), len(later.begun)) == (n_epochs, n_steps)
    assert trainee.n_asked_before == n_epochs
    progress = Counted()
    later.run(progress)
    assert (later.history, later.log, later.best) == (whole.history, whole.log, whole.best)
    assert torch.equal(later.kept["w"], whole.kept["w"])
    assert progress.n == 9


@pytest.mark.parametrize(("after", "n_epochs", "n_steps"), [("epochs", 1, 0), ("steps", 1, 1)])
def test_a_checkpoint_is_written_after_epochs_or_after_steps_too(
    after: Literal["epochs", "steps"], n_epochs: int, n_steps: int, tmp_path: Path
) -> None:
    scores = [[0.5], [0.4]]
    whole = Trainer(Planted(scores, n_steps=3), Plan(2, 3)).run(SilentProgress())
    file = Checkpoint(tmp_path / "fit.pt", "one", after=after)
    broken = Trainer(Planted(scores, n_steps=3), Plan(2, 3))
    with pytest.raises(StoppedError):
        train_resumably(broken, Stopping(5), file)
    saved = file.load()
    assert saved is not None
    assert (len(saved["history"]), len(saved["begun"])) == (n_epochs, n_steps)
    later = Trainer(Planted(scores[n_epochs:], n_steps=3), Plan(2, 3))
    train_resumably(later, SilentProgress(), file)
    assert (later.history, later.log, later.best) == (whole.history, whole.log, whole.best)
    assert torch.equal(later.kept["w"], whole.kept["w"])
    # Who is killed before the result was saved finds the end.
    over = Trainer(Planted([[0.9]], n_steps=3), Plan(2, 3))
    train_resumably(over, SilentProgress(), file)
    assert (over.history, over.log, over.best) == (whole.history, whole.log, whole.best)


def test_checkpoints_that_take_long_are_written_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of 3 s, every 15 s at least: the next one comes after 60 s. Each step takes 10 s."""
    clock, written = [0.0], list[float]()

    class Slow(Checkpoint):
        def save(self, content: Mapping[str, object]) -> bool:
            written.append(clock[0])
            clock[0] += 3
            return True

    class Ticking(SilentProgress):
        def advance(self, amount: int | float, note: str = "") -> None:
            clock[0] += 10 * bool(note)

    monkeypatch.setattr("permafrost.stages.fit.checkpoint.time.monotonic", lambda: clock[0])
    trainer = Trainer(Planted([[0.5]] * 5, n_steps=6), Plan(5, 6))
    train_resumably(trainer, Ticking(), Slow(tmp_path / "fit.pt", "one", 15.0, "steps"))
    assert written[0] == 20
    assert np.diff(written).tolist() == [63.0] * (len(written) - 1)
    written.clear()
    trainer = Trainer(Planted([[0.5]], n_steps=6), Plan(1, 6))
    train_resumably(trainer, Ticking(), Slow(tmp_path / "fit.pt", "one", 0.0, "steps"))
    assert len(written) == 6, "each time, if asked for"


def test_a_checkpoint_is_written_without_holding_it_in_memory(tmp_path: Path) -> None:
    file, weights = (
        Checkpoint(tmp_path / "fit.pt", "one"),
        torch.arange(4 << 20, dtype=torch.float32),
    )
    tracemalloc.start()
    file.save({"weights": weights})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weights.nbytes // 4
    saved = file.load()
    assert saved is not None
    assert torch.equal(saved["weights"], weights)


class StoppedError(Exception):
    """Raised by the progress in the middle."""


class Stopping(SilentProgress):
    """Stops a training before a step is over."""

    def __init__(self, step: int) -> None:
        self.left = step

    def advance(self, amount: int | float, note: str = "") -> None:
        # What a resumed training has behind it comes without a note.
        self.left -= bool(note)
        if not self.left:
            raise StoppedError


class Counted(SilentProgress):
    """Counts the steps it is told of."""

    n = 0

    def advance(self, amount: int | float, note: str = "") -> None:
        self.n += int(amount)


@pytest.mark.parametrize(("n", "size", "least", "sizes"), [(7, 3, 1, [3, 3, 1]), (7, 3, 2, [3, 4])])
def test_batches_hold_every_example_once(n: int, size: int, least: int, sizes: list[int]) -> None:
    batches = shuffled_batches(n, size, 0, 1, least)
    assert [len(batch) for batch in batches] == sizes
    expected = np.random.default_rng([0, 1]).permutation(n)
    assert np.concatenate(batches).tolist() == expected.tolist()
