"""Heads on arrays with one row per text, which extraction has pooled already, beside heads on tokens."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from permafrost.stages.metrics.records import TOKEN_WEIGHTS
from tests.flows.conftest import tiny_experiment
from tests.flows.experiments import rows_of, run_in


@pytest.mark.deep
@pytest.mark.drawn
def test_heads_on_a_stored_readout_are_reported_and_only_tokens_have_weights(tiny_bert, tmp_path):
    content = tiny_experiment(tiny_bert)
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 1}
    stored = {"kind": "head", "layer": "pooled/hidden_readout/2", "optim": optim}
    tokens = {**stored, "layer": "hidden/2"}
    content["capture"] = "hidden=2@readout,hidden=2@tokens"
    content["methods"] = {
        "readout": {**stored, "head": {"kind": "first"}},
        "mean of readouts": {**stored, "head": {"kind": "mean"}},
        "first": {**tokens, "head": {"kind": "first"}},
        "last": {**tokens, "head": {"kind": "last"}},
    }
    content["seeds"] = [0]
    content["tasks"] = {"ratio 0.2": content["tasks"]["ratio 0.2"]}
    content["report"] = {"title": "Readouts"}
    _, home, result = run_in(tmp_path, content)
    rows = {row["method"]: row for row in rows_of(result)}
    # The readout of an encoder is its first token, and the mean of one row is that row.
    answers = {(rows[m]["test"], rows[m]["dev"]) for m in ("readout", "mean of readouts", "first")}
    assert len(answers) == 1
    weighed = [pq.read_table(path) for path in home.rglob(TOKEN_WEIGHTS)]
    ones = [
        np.argmax(row) / (len(row) - 1) for t in weighed for row in t.column("weights").to_pylist()
    ]
    assert sorted(set(ones)) == [0, 1], "all on the first token, or all on the last one"
    page = result.report.read_text(encoding="utf-8")
    assert "mean of readouts" in page
