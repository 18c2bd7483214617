"""Searches, whose predictions are the scores of their queries."""

import json
from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.metrics.bootstrap import (
    BootstrapConfig,
    bootstrap_interval,
    paired_bootstrap,
)
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.standing import standings
from tests.stages.report.scored_cells import scored_cell

CONFIG = BootstrapConfig(n_resamples=400)


def test_searches_are_resampled_by_query(tmp_path: Path):
    rng = np.random.default_rng(0)
    gains = rng.uniform(size=200)
    given = {"low": gains, "high": np.clip(gains + rng.normal(0.02, 0.05, 200), 0, 1)}
    cells = [
        scored_cell(tmp_path, name, np.ones(200), own, scores=own) for name, own in given.items()
    ]
    for one, own in zip(cells, given.values(), strict=True):
        path = one.folder / "metrics.json"
        found = {"metric": "ndcg_at_10", "test": float(own.mean())}
        path.write_text(json.dumps(json.loads(path.read_text()) | found))
    (standing,) = standings(read_results(cells), [("t", "ndcg_at_10")], CONFIG)
    settings = {"n_resamples": 400, "seed": CONFIG.seed}
    alone = bootstrap_interval("mean", gains, given["high"], **settings)
    assert vars(standing.entries["high"]) == pytest.approx(vars(alone))
    against = standing.against("low")
    assert against is not None
    expected = paired_bootstrap("mean", gains, given["low"], given["high"], **settings)
    assert vars(against.difference) == pytest.approx(vars(expected))
