"""Rates, clipping, early ends and precision."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from permafrost.stages.fit import FitConfig, OptimConfig, TaskFacts, fit
from permafrost.stages.fit.models import build_model
from permafrost.stages.fit.optim import rate
from permafrost.stages.fit.run import HeadTrainee, encode
from permafrost.stages.fit.sources import Singles
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.fit.training import ends_early
from permafrost.stages.heads import AdaPoolHead, GlotHead, MeanHead, MlpHead, ScorerHead
from permafrost.storage.progress import SilentProgress
from tests.stages.synthetic_fit import (
    PAIR_TASKS,
    WIDTH,
    features,
    make_data,
    make_pairs,
    same_fit,
)

CPU = torch.device("cpu")
FACTS = TaskFacts("classification", ("class 0", "class 1"))
HEADS = {
    "scorer": ScorerHead(hidden=8),
    "gat": GlotHead(hidden=8, tau=0.4),
    "gcn": GlotHead(hidden=8, tau=0.4, conv="gcn"),
    "gin": GlotHead(hidden=8, tau=0.4, conv="gin"),
    "gin_plain": GlotHead(hidden=8, tau=0.4, conv="gin_plain"),
    "heads": GlotHead(hidden=8, tau=0.4, heads=2, project=6, jumping="max"),
    "mlp": MlpHead(hidden=8, n_layers=3),
    "adapool": AdaPoolHead(heads=2, query="first"),
}


def _config(head=None, **settings):
    settings = {"optim": OptimConfig(lr=1e-2, batch_size=16, max_epochs=3)} | settings
    return FitConfig(head=ScorerHead(hidden=8) if head is None else head, seed=3, **settings)


def _fit(config, data=None):
    return fit(config, make_data() if data is None else data, SilentProgress())


# Rates


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.25])
def test_rates_are_those_of_the_formulas(schedule, warmup):
    config = OptimConfig(lr=0.5, schedule=schedule, warmup=warmup)
    n, w = 20, round(20 * warmup)
    for step in range(n):
        share = (step - w) / (n - w)
        after = {
            "constant": 1.0,
            "linear": 1 - share,
            "cosine": 0.5 + 0.5 * math.cos(math.pi * share),
        }[schedule]
        expected = 0.5 * ((step + 1) / w if step < w else after)
        assert rate(config, step, n) == pytest.approx(expected, rel=1e-12)
        assert rate(config, step, n) > 0
    assert rate(config, w, n) == 0.5


def test_the_rates_reach_the_optimizer_and_the_log():
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=3, schedule="linear", warmup=0.2)
    result = _fit(_config(optim=optim))
    assert [r.lr for r in result.log] == [rate(optim, step, 18) for step in range(18)]
    assert [r.step for r in result.log] == list(range(1, 19))
    assert [r.epoch for r in result.log] == [1] * 6 + [2] * 6 + [3] * 6
    constant = _fit(_config())
    assert {r.lr for r in constant.log} == {1e-2}
    assert result.log[0].loss == constant.log[0].loss, "before the first step nothing differs"
    assert result.history != constant.history


def test_a_step_has_the_rate_that_the_log_says():
    """One Adam step without momentum behind it moves every parameter by the rate."""
    optim = OptimConfig(lr=1e-2, batch_size=96, max_epochs=10, warmup=0.5)
    config, data = _config(optim=optim), make_data()
    train = data.split("train")
    source = Singles(data.reader("hidden/6").subset(train.texts), train.labels)
    trainee = HeadTrainee(config, FACTS, source, None, CPU)
    weight = trainee.model.get_parameter("classifier.linear.weight")
    before = weight.detach().clone()
    (step,) = Trainer(trainee, trainee.plan).steps(1)
    moved = (weight.detach() - before).abs()
    assert step.lr == pytest.approx(1e-2 / 5)
    # Adam's epsilon of 1e-8 beside gradients of about 1e-2, and float32 weights of about 0.1.
    torch.testing.assert_close(moved, torch.full_like(moved, step.lr), rtol=1e-4, atol=1e-7)


def test_a_warmup_of_all_steps_is_refused():
    with pytest.raises(ValidationError, match="less than 1"):
        OptimConfig(warmup=1.0)


# Clipping


def test_gradients_are_scaled_to_the_largest_norm_and_short_ones_left_alone():
    data = make_data()
    train = data.split("train")
    source = Singles(data.reader("hidden/6").subset(train.texts), train.labels)
    norms = {}
    for limit in (None, 1e-3, 1e6):
        optim = OptimConfig(lr=1e-2, batch_size=96, max_epochs=1, max_grad_norm=limit)
        config = _config(optim=optim)
        trainee = HeadTrainee(config, FACTS, source, None, CPU)
        list(Trainer(trainee, trainee.plan).steps(1))
        parts = [p.grad.double().square().sum() for p in trainee.model.parameters()]
        norms[limit] = math.sqrt(sum(parts))
    assert norms[None] == norms[1e6] > 1e-2
    # torch divides by the norm plus 1e-6.
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-4)


# Early ends


@pytest.mark.parametrize(
    ("first", "second", "grid_patience", "is_over"),
    [
        (0.7, [0.1, 0.2], 2, True),
        (0.7, [0.1, 0.7], 2, True),  # equal does not beat
        (0.7, [0.8, 0.2], 2, False),
        (0.7, [0.1], 2, False),
        (0.7, [0.1, 0.2], None, False),
        (None, [0.1, 0.2], 2, False),  # the first candidate
    ],
)
def test_grid_patience_compares_with_all_candidates_before(first, second, grid_patience, is_over):
    assert ends_early(grid_patience, first, second) is is_over


def test_an_early_end_keeps_what_came_before_and_spares_the_rest():
    plain = _fit(_config(optim=OptimConfig(lr=5e-2, batch_size=16, max_epochs=12)))
    optim = OptimConfig(lr=5e-2, batch_size=16, max_epochs=12, patience=2)
    early = _fit(_config(optim=optim))
    n = len(early.history)
    assert 2 < n < 12
    assert early.history == plain.history[:n]
    metrics = [r.dev_metric for r in early.history]
    assert max(metrics[-2:]) <= max(metrics[:-2]), "the last two were no better"
    assert early.best == max(early.history, key=lambda r: r.dev_metric)


def test_a_bad_cell_of_a_grid_ends_early_and_does_not_change_the_choice():
    optim = OptimConfig(lr=2e-2, batch_size=16, max_epochs=8)
    best = _fit(_config(optim=optim)).best.dev_metric
    noise = _config(optim=optim, layer="hidden/1")
    whole = _fit(noise)
    patient = noise.model_copy(update={"grid_patience": 2})
    short = fit(patient, make_data(), SilentProgress(), to_beat=best)
    assert short.history == whole.history[:2]
    assert whole.best.dev_metric <= best, "it would not have been chosen"


def test_steps_that_a_candidate_is_spared_count_as_done():
    class Recorder(SilentProgress):
        total = done = 0.0

        def start(self, task, total, unit):
            self.total = total

        def advance(self, amount, note=""):
            self.done += amount

    recorder = Recorder()
    optim = OptimConfig(lr=5e-2, batch_size=16, max_epochs=12, patience=1)
    result = fit(_config(optim=optim), make_data(), recorder)
    assert len(result.history) < 12
    assert recorder.done == recorder.total == 12 * 6


# Precision


def _gradients(head, precision):
    optim = OptimConfig(lr=1e-3, batch_size=96, max_epochs=1, precision=precision)
    config, rows = _config(head, optim=optim), features(24, 1)
    model = build_model(config, FACTS, WIDTH).train()
    labels = torch.arange(24) % 2
    batch = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
    encoded = encode(model, precision, *batch)
    assert encoded.dtype == torch.float32
    functional.cross_entropy(encoded, labels).backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", list(HEADS))
def test_gradients_in_bfloat16_point_where_those_in_float32_do(kind):
    exact, rough = (_gradients(HEADS[kind], p) for p in ("float32", "bfloat16"))
    assert not torch.equal(exact, rough)
    # bfloat16 has 8 bits: a relative rounding of 2^-9 = 0.002 at each of a few dozen operations, and
    # rounding moves single edges of the token graph.
    assert functional.cosine_similarity(exact, rough, dim=0).item() >= 0.99
    assert rough.norm().item() == pytest.approx(exact.norm().item(), rel=0.05)


@pytest.mark.few(1)
@pytest.mark.parametrize("task", list(PAIR_TASKS))
def test_bfloat16_trains_every_task_deterministically_and_dev_is_evaluated_in_float32(task):
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=2, precision="bfloat16")
    config = _config(GlotHead(hidden=6, tau=0.4), optim=optim, **PAIR_TASKS[task])
    data = make_pairs(task)
    result = _fit(config, data)
    same_fit(result, _fit(config, data))
    exact = _fit(
        config.model_copy(update={"optim": optim.model_copy(update={"precision": "float32"})}), data
    )
    assert result.log[0].loss != exact.log[0].loss
    assert result.log[0].loss == pytest.approx(exact.log[0].loss, rel=0.05)
    assert {v.dtype for v in result.state.values()} == {torch.float32}


@pytest.mark.parametrize(("kind", "norm"), [("mlp", "norms.0"), ("gin", "convs.1.norm")])
def test_running_statistics_of_batch_normalisation_move_in_bfloat16_too(kind, norm):
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=2, precision="bfloat16")
    state = _fit(_config(HEADS[kind], optim=optim)).state
    mean = state[f"pooling.{norm}.running_mean"]
    assert mean.dtype == torch.float32
    assert float(mean.abs().max()) > 0.01
    assert int(state[f"pooling.{norm}.num_batches_tracked"]) > 0


# How long


@pytest.mark.parametrize(
    ("n_examples", "settings", "limits"),
    [
        (96, {}, (1000, 100)),  # 3 steps an epoch
        (540, {}, (177, 18)),  # 17
        (9003, {}, (11, 5)),  # 282
        (32 * 3000, {}, (2, 5)),  # one epoch would do: two are the least
        (2_000_000, {}, (2, 5)),
        (540, {"max_epochs": 3}, (3, 18)),
        (2_000_000, {"max_epochs": 3, "patience": None}, (3, None)),
        (96, {"batch_size": 16, "max_steps": 30, "patience": 2}, (5, 2)),
    ],
)
def test_epochs_are_as_many_as_their_steps_make_up_unless_they_are_given(
    n_examples, settings, limits
):
    optim = OptimConfig(**settings)
    assert optim.limits(n_examples) == limits
    written = optim.for_examples(n_examples)
    assert (written.max_epochs, written.patience) == written.limits(7) == limits


def test_the_number_of_epochs_is_worked_out_once_and_recorded():
    # 96 examples, 6 steps an epoch.
    optim = OptimConfig(
        lr=1e-2, batch_size=16, max_steps=30, patience=None, schedule="linear", warmup=0.2
    )
    result = _fit(_config(optim=optim))
    assert len(result.history) == 5
    assert result.head().config.optim.max_epochs == 5
    assert result.head().choice["optim.max_epochs"] == 5
    assert result.config.optim.max_epochs is None, "what was asked for"
    given = _config(optim=optim.model_copy(update={"max_epochs": 5}))
    same_fit(result, _fit(given))
    assert [r.lr for r in result.log] == [rate(optim, step, 30) for step in range(30)]


@pytest.mark.deep
def test_the_defaults_train_small_data_until_dev_gets_no_better():
    result = _fit(FitConfig(head=HEADS["scorer"], seed=0))
    last = result.history[-1].epoch
    assert last < 1000, "early stopping"
    assert result.best.epoch == last - 100, "the epoch that is kept is not the last"
    assert result.best.dev_metric >= 0.85
    two_epochs = OptimConfig(lr=2e-4, max_epochs=2, patience=None)
    before = _fit(FitConfig(head=HEADS["scorer"], seed=0, optim=two_epochs))
    assert before.best.dev_metric < 0.75


def test_the_papers_setting_can_still_be_said():
    # GLOT, section 4.1.
    optim = OptimConfig(lr=2e-4, max_epochs=2, patience=None)
    assert (optim.optimizer, optim.batch_size, optim.schedule) == ("adam", 32, "constant")
    assert optim.limits(540) == optim.limits(67_349) == (2, None)
    assert FitConfig(head=MeanHead(), seed=0).grid_patience is None
