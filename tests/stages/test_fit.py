"""Run as a script to write the golden losses again."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from permafrost.stages.fit import (
    FitConfig,
    OptimConfig,
    bar_after,
    choose,
    evaluate,
    fit,
    load_head,
)
from permafrost.stages.fit.candidates import arrays, candidates
from permafrost.stages.fit.models import TaskFacts
from permafrost.stages.fit.run import HeadTrainee
from permafrost.stages.fit.sources import Singles
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.heads import FirstHead, GlotHead, LastHead, MaxHead, MeanHead, ScorerHead
from permafrost.stages.metrics.records import CANDIDATE_EPOCHS
from permafrost.storage.errors import InputError, NotFoundError, PermafrostError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader
from tests.stages.synthetic_fit import make_data, same_fit, with_column

HEADS = {
    "first": FirstHead(),
    "last": LastHead(),
    "mean": MeanHead(),
    "max": MaxHead(),
    "scorer": ScorerHead(hidden=8),
    "glot": GlotHead(hidden=8, tau=0.4),
}
GOLDEN = Path(__file__).parents[1] / "golden" / "losses"
CPU = torch.device("cpu")
FACTS = TaskFacts("classification", ("class 0", "class 1"))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _config(kind="glot", **settings):
    settings.setdefault("optim", OptimConfig(lr=1e-2, batch_size=16, max_epochs=3))
    return FitConfig(head=HEADS[kind], **({"seed": 3} | settings))


def _fit(config, data=None):
    return fit(config, make_data() if data is None else data, SilentProgress())


class _Recorder:
    def __init__(self):
        self.total, self.done, self.finished = 0.0, 0.0, 0

    def start(self, task, total, unit):
        self.total = total

    def advance(self, amount, note=""):
        self.done += amount

    def finish(self):
        self.finished += 1


# Learning


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["mean", "max", "scorer", "glot"])
def test_a_head_learns_a_class_that_one_token_gives_away(kind):
    optim = OptimConfig(lr=2e-2, batch_size=16, max_epochs=12)
    result = _fit(_config(kind, optim=optim), make_data(n_train=240))
    assert result.best.dev_metric >= 0.8
    assert result.history[-1].train_loss < result.history[0].train_loss


def test_shuffled_labels_leave_nothing_to_learn_and_change_train_and_dev():
    data = make_data(n_dev=400)
    optim = OptimConfig(lr=2e-2, batch_size=16, max_epochs=2)
    true = _fit(_config("scorer", optim=optim), data)
    shuffled = _fit(_config("scorer", optim=optim, labels="shuffled"), data)
    assert shuffled.best.dev_metric == pytest.approx(0.5, abs=0.1)
    assert true.history != shuffled.history


def test_adamw_and_weight_decay_reach_the_optimizer():
    plain = _fit(_config("scorer"))
    for optimizer in ("adam", "adamw"):
        optim = OptimConfig(
            lr=1e-2, batch_size=16, max_epochs=3, optimizer=optimizer, weight_decay=0.3
        )
        assert _fit(_config("scorer", optim=optim)).history != plain.history


# Selection


def test_the_best_epoch_on_dev_is_kept():
    result = _fit(_config("scorer", optim=OptimConfig(lr=2e-2, batch_size=16, max_epochs=6)))
    assert len(result.history) == 6
    top = max(record.dev_metric for record in result.history)
    first = next(record for record in result.history if record.dev_metric == top)
    assert result.best == first, "ties go to the earliest epoch"


def test_the_kept_parameters_are_those_of_the_best_epoch():
    config = _config("scorer", optim=OptimConfig(lr=5e-2, batch_size=16, max_epochs=6))
    data = make_data()
    result = _fit(config, data)
    dev = data.split("dev")
    rows = data.readers["hidden/6"].features.take(dev.texts)
    logits = result.head().logits(torch.from_numpy(rows.data), torch.from_numpy(rows.offsets))
    assert np.mean(logits.argmax(1).numpy() == dev.labels) == result.best.dev_metric


def test_a_fit_never_reads_test():
    data = make_data()
    test_texts = data.split("test").texts
    rows = data.readers["hidden/6"].features
    broken = rows.data.copy()
    for text in test_texts:
        broken[rows.offsets[text] : rows.offsets[text + 1]] = np.nan
    blind = replace(
        data, readers={"hidden/6": InMemoryReader("hidden/6", Ragged(broken, rows.offsets))}
    )
    for kind in ("mean", "glot"):
        same_fit(_fit(_config(kind), data), _fit(_config(kind), blind))


def test_candidates_do_not_depend_on_the_order_in_which_the_grid_is_written():
    one = candidates(_config(), {"layer": ("hidden/6", "hidden/1"), "head.tau": (0.3, 0.6)})
    other = candidates(_config(), {"head.tau": (0.3, 0.6), "layer": ("hidden/6", "hidden/1")})
    assert list(one.items()) == list(other.items())
    assert {name: (c.head.tau, c.layer) for name, c in one.items()} == {
        "head.tau 0.3, layer hidden/6": (0.3, "hidden/6"),
        "head.tau 0.3, layer hidden/1": (0.3, "hidden/1"),
        "head.tau 0.6, layer hidden/6": (0.6, "hidden/6"),
        "head.tau 0.6, layer hidden/1": (0.6, "hidden/1"),
    }
    assert arrays(one) == ("hidden/6", "hidden/1")


def test_a_candidate_is_what_a_method_without_a_grid_would_be():
    grid = {"head.tau": (0.3, 0.6)}
    found = list(candidates(_config(), grid).values())
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=3)
    heads = [GlotHead(hidden=8, tau=tau) for tau in grid["head.tau"]]
    assert found == [FitConfig(head=head, seed=3, optim=optim) for head in heads]
    assert candidates(_config(), {}) == {"": _config()}
    patient = candidates(_config(grid_patience=2), grid)
    assert [c.grid_patience for c in patient.values()] == [None, 2], "the first has none before it"


def test_the_best_on_dev_is_chosen_the_first_of_equal_ones_and_keeps_all_histories(tmp_path):
    optim = OptimConfig(lr=2e-2, batch_size=16, max_epochs=6)
    grid = {"layer": ("hidden/1", "hidden/6"), "head.hidden": (4, 8)}
    results = [_fit(c) for c in candidates(_config("scorer", optim=optim), grid).values()]
    folders = [tmp_path / str(i) for i in range(4)]
    for folder, result in zip(folders, results, strict=True):
        folder.mkdir()
        result.save(folder)
    choice = choose(folders)
    on_dev = [result.best.dev_metric for result in results]
    assert choice.candidate == on_dev.index(max(on_dev))
    assert choose([folders[choice.candidate]] * 3).candidate == 0
    (tmp_path / "chosen").mkdir()
    choice.save(tmp_path / "chosen")
    names = ("head.safetensors", "chosen/head.safetensors")
    kept = folders[choice.candidate] / names[0]
    assert (tmp_path / names[1]).read_bytes() == kept.read_bytes()
    assert load_head(tmp_path / "chosen").choice == results[choice.candidate].head().choice
    history = pq.read_table(tmp_path / "chosen" / "history.parquet")
    assert history.schema == CANDIDATE_EPOCHS
    assert history["candidate"].to_pylist() == [i for i in range(4) for _ in range(6)]
    assert history["dev_metric"].to_pylist() == [r.dev_metric for f in results for r in f.history]
    settings = [
        FitConfig.model_validate_json(c) for c in history["candidate_json"].to_pylist()[::6]
    ]
    assert settings == [result.head().config for result in results]
    with (tmp_path / "chosen" / "log.csv").open(newline="") as file:
        log = list(csv.DictReader(file))
    assert [int(row["candidate"]) for row in log] == [i for i in range(4) for _ in range(36)]
    assert [float(row["loss"]) for row in log] == [s.loss for f in results for s in f.log]


def test_what_is_to_beat_is_the_best_of_all_before(tmp_path):
    for before, expected in ((None, 0.7), (0.9, 0.9), (0.5, 0.7)):
        record = {"dev_metric": 0.7, "to_beat": before}
        (tmp_path / "head.json").write_text(json.dumps(record))
        assert bar_after(tmp_path) == expected


def test_a_grid_may_range_over_whole_heads():
    found = candidates(_config(), {"head": ({"kind": "mean"}, {"kind": "scorer", "hidden": 4})})
    assert [c.head for c in found.values()] == [MeanHead(), ScorerHead(hidden=4)]


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"head.depth": (1,)}, "head.depth.*head.tau"),
        ({"head.tau.x": (1,)}, "head.tau.x"),
        ({"grid": ({},)}, "'grid'"),
        ({"head.tau": ()}, "no values"),
        ({"head.n_convs": (2, -1)}, "head.n_convs=-1.*greater than or equal to 0"),
    ],
)
def test_a_wrong_grid_names_the_field_and_what_exists(grid, says):
    with pytest.raises(InputError, match=says):
        candidates(_config(), grid)


# Determinism


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", list(HEADS))
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(kind):
    same_fit(_fit(_config(kind)), _fit(_config(kind)))
    assert _fit(_config(kind, seed=4)).history != _fit(_config(kind)).history


@pytest.mark.deep
def test_fits_side_by_side_in_threads_equal_fits_alone():
    configs = [_config(kind, seed=seed) for kind in ("scorer", "glot") for seed in (1, 2)]
    data = make_data()
    alone = [_fit(config, data) for config in configs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda config: _fit(config, data), configs * 2))
    for one, other in zip(alone * 2, together, strict=True):
        same_fit(one, other)


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one = _fit(_config())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    same_fit(one, _fit(_config()))


@pytest.mark.parametrize("kind", ["first", "last", "mean", "max"])
def test_pooling_once_equals_training_through_the_head(kind):
    config = _config(kind)
    data = make_data()
    quick = _fit(config, data)
    train = data.split("train")
    source = Singles(data.reader("hidden/6").subset(train.texts), train.labels)
    trainee = HeadTrainee(config, FACTS, source, None, CPU)
    for record in quick.history:
        steps = list(Trainer(trainee, trainee.plan).steps(record.epoch))
        loss = sum(step.loss * step.n_examples for step in steps) / len(train)
        assert loss == pytest.approx(record.train_loss, rel=1e-6)


# Refusals


def test_a_corpus_that_cannot_be_fitted_is_refused():
    data = make_data()
    n = len(data.examples)
    splits = data.examples["split"].to_pylist()
    cases = [
        (with_column(data, label=pa.array([1.0] * n)), "all 96 train examples.*class 1"),
        (with_column(data, label=pa.array([0.5] * n)), "not a class index.*0.5"),
        (with_column(data, label=pa.array([0.0, 2.0] * (n // 2))), "first is 2.0"),
        (
            with_column(data, label=pa.nulls(n, pa.float64())),
            "96 of 96 train examples have no label",
        ),
        (with_column(data, text_pair=data.examples["text"]), "pairs of texts"),
        (
            with_column(data, split=pa.array([s.replace("dev", "test") for s in splits])),
            "no dev examples.*test, train",
        ),
        (with_column(data, split=pa.array(["dev"] * n)), "no train examples"),
        (replace(data, digests=data.digests[:-1]), "176 texts and the corpus 175"),
    ]
    for broken, says in cases:
        with pytest.raises(InputError, match=says):
            _fit(_config("mean"), broken)


def test_a_text_without_tokens_is_named():
    data = make_data()
    rows = data.readers["hidden/6"].features
    offsets = rows.offsets.copy()
    offsets[4] = offsets[3]
    empty = replace(
        data, readers={"hidden/6": InMemoryReader("hidden/6", Ragged(rows.data, offsets))}
    )
    with pytest.raises(InputError, match=f"text 3, digest {data.digests[3]}"):
        _fit(_config("glot"), empty)


def test_an_array_that_was_not_opened_is_refused_with_what_there_is():
    with pytest.raises(NotFoundError, match="hidden/9; the fit has hidden/1, hidden/6"):
        _fit(_config(layer="hidden/9"))


def test_a_loss_that_is_not_finite_names_where_it_happened():
    data = make_data()
    rows = data.readers["hidden/6"].features
    rows.data[rows.offsets[data.split("train").texts[0]]] = np.inf
    with pytest.raises(PermafrostError, match=r"loss is nan at epoch 1, step \d.*optim.lr 0.01"):
        _fit(_config("scorer"), data)


def test_progress_adds_up_and_finishes_also_when_the_fit_fails():
    recorder = _Recorder()
    fit(_config(), make_data(), recorder)
    assert recorder.total == recorder.done == 3 * 6
    assert recorder.finished == 1
    data = make_data()
    data.readers["hidden/6"].features.data[:] = np.nan
    failing = _Recorder()
    with pytest.raises(PermafrostError):
        fit(_config(), data, failing)
    assert failing.finished == 1


def test_f1_needs_two_classes():
    with pytest.raises(InputError, match="3 classes"):
        _fit(_config("mean", metric="f1"), make_data(classes=3))
    with pytest.raises(InputError, match="3 classes"):
        evaluate("f1", np.array([0, 2]), np.array([1, 1]))


# Golden losses


def _ten_losses(kind):
    data = make_data(n_train=160)
    train = data.split("train")
    config = _config(kind)
    source = Singles(data.reader("hidden/6").subset(train.texts), train.labels)
    trainee = HeadTrainee(config, FACTS, source, None, CPU)
    return [step.loss for step in Trainer(trainee, trainee.plan).steps(1)]


@pytest.mark.parametrize("kind", list(HEADS))
def test_ten_training_steps_give_the_golden_losses(kind):
    lines = (GOLDEN / f"{kind}.txt").read_text().splitlines()
    golden = [float(line) for line in lines if not line.startswith("#")]
    assert len(golden) == 10
    assert _ten_losses(kind) == pytest.approx(golden, rel=1e-5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in HEADS:
        header = (
            f"# loss of ten training steps of {HEADS[name]!r}, torch {torch.__version__}, 1 thread"
        )
        lines = [header, *(repr(loss) for loss in _ten_losses(name))]
        (GOLDEN / f"{name}.txt").write_text("\n".join(lines) + "\n")
