"""What a fit writes, and reading it again."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from permafrost.stages.fit import FitConfig, OptimConfig, fit, load_head
from permafrost.stages.heads import (
    AdaPoolHead,
    FirstHead,
    GlotHead,
    LastHead,
    MaxHead,
    MeanHead,
    ScorerHead,
)
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.progress import SilentProgress
from tests.stages.synthetic_fit import WIDTH, features, make_data

HEADS = {
    "first": FirstHead(),
    "last": LastHead(),
    "mean": MeanHead(),
    "max": MaxHead(),
    "scorer": ScorerHead(hidden=8),
    "glot": GlotHead(hidden=8, tau=0.4),
    "adapool": AdaPoolHead(heads=2, scale="head"),
    "gin": GlotHead(hidden=8, tau=0.4, conv="gin"),
    "gin_plain": GlotHead(hidden=8, tau=0.4, conv="gin_plain"),
}


def _config(kind, **settings):
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=3)
    return FitConfig(head=HEADS[kind], seed=3, optim=optim, **settings)


def _fit(config):
    return fit(config, make_data(), SilentProgress())


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", list(HEADS))
def test_a_saved_head_computes_the_same_after_loading(kind, tmp_path):
    result = _fit(_config(kind, layer="hidden/1"))
    result.save(tmp_path)
    loaded, head = load_head(tmp_path), result.head()
    rows = features(5, 9)
    batch = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
    assert torch.equal(loaded.logits(*batch), head.logits(*batch))
    assert torch.equal(loaded.embed(*batch), head.embed(*batch))
    one, other = loaded.token_weights(*batch), head.token_weights(*batch)
    assert (one is None and other is None) or torch.equal(one, other)
    assert loaded.config == head.config
    assert loaded.choice == head.choice
    assert loaded.choice["layer"] == "hidden/1"
    assert loaded.label_names == ("class 0", "class 1")


def test_the_files_hold_the_config_the_choice_and_the_history(tmp_path):
    result = _fit(_config("scorer"))
    result.save(tmp_path)
    record = json.loads((tmp_path / "head.json").read_text())
    assert FitConfig.model_validate(record["config"]) == result.config
    assert FitConfig.model_validate(record["chosen"]) == result.trained
    hidden = 8
    assert record["n_pooling_parameters"] == WIDTH * hidden + 2 * hidden + 1
    assert record["n_parameters"] == record["n_pooling_parameters"] + 2 * WIDTH + 2
    history = pq.read_table(tmp_path / "history.parquet")
    assert history.column_names == ["epoch", "train_loss", "dev_metric"]
    assert history["epoch"].to_pylist() == [1, 2, 3]
    assert history["dev_metric"].to_pylist() == [r.dev_metric for r in result.history]
    assert record["task"] == "classification"


def test_the_log_has_a_line_per_step_and_the_dev_metric_at_the_end_of_each_epoch(tmp_path):
    result = _fit(_config("scorer"))
    result.save(tmp_path)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,loss,lr,dev_metric"
    rows = list(csv.DictReader(lines))
    assert len(rows) == 3 * 6
    assert [int(row["step"]) for row in rows] == [*range(1, 19)]
    for record in result.history:
        mine = [row for row in rows if int(row["epoch"]) == record.epoch]
        assert np.mean([float(row["loss"]) for row in mine]) == pytest.approx(record.train_loss)
        assert [row["dev_metric"] for row in mine[:-1]] == [""] * 5
        assert float(mine[-1]["dev_metric"]) == record.dev_metric
        assert {float(row["lr"]) for row in mine} == {1e-2}


@pytest.mark.parametrize(("kind", "before"), [("gin_plain", {"conv": "gin"}), ("adapool", {})])
def test_heads_whose_names_mean_something_else_now_are_read_as_what_they_were(
    kind, before, tmp_path
):
    result = _fit(_config(kind))
    result.save(tmp_path)
    record = json.loads((tmp_path / "head.json").read_text())
    record["format"] = 2
    written = record["chosen"]["head"]
    written.pop("scale", None)
    written |= before
    (tmp_path / "head.json").write_text(json.dumps(record))
    head = load_head(tmp_path)
    assert head.config == result.head().config
    rows = features(5, 9)
    batch = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
    assert torch.equal(head.embed(*batch), result.head().embed(*batch))


def test_heads_from_before_there_were_other_tasks_are_still_read(tmp_path):
    result = _fit(_config("scorer"))
    result.save(tmp_path)
    record = json.loads((tmp_path / "head.json").read_text())
    for name in ("task", "label_range"):
        del record[name]
    record["format"] = 1
    del record["to_beat"]
    new = ("schedule", "warmup", "max_grad_norm", "patience", "precision")
    for config in (record["config"], record["chosen"]):
        del config["loss"], config["grid_patience"]
        for name in new:
            del config["optim"][name]
        config["grid"] = {"head.hidden": [4, 8]}
    (tmp_path / "head.json").write_text(json.dumps(record))
    head = load_head(tmp_path)
    optim = result.head().config.optim.model_copy(update={"patience": None})
    assert head.config == result.head().config.model_copy(update={"optim": optim})
    assert head.facts == result.facts
    for name, value in head.model.state_dict().items():
        assert torch.equal(value, result.state[name])


def test_missing_and_damaged_head_files_are_told_apart(tmp_path):
    with pytest.raises(NotFoundError, match=r"head\.json"):
        load_head(tmp_path)
    _fit(_config("scorer")).save(tmp_path)
    whole = (tmp_path / "head.safetensors").read_bytes()
    (tmp_path / "head.safetensors").write_bytes(whole[:50])
    with pytest.raises(CorruptDataError, match="run the fit again"):
        load_head(tmp_path)
