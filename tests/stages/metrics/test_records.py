"""Names and columns of result files stand in one place, for those who write them and for the report."""

import ast
import functools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.fit.history import EpochRecord, history_table
from permafrost.stages.metrics.records import CANDIDATE_EPOCHS, EPOCHS, POINTS, write_metrics
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.stages.report.probes import PROBE_CURVES

STAGES = Path(__file__).parents[3] / "stages"


@pytest.mark.parametrize(
    "name",
    [
        "metrics.json",
        "predictions.parquet",
        "token_weights.parquet",
        "map.parquet",
        "points.parquet",
    ],
)
def test_a_result_file_is_named_in_one_module(name: str) -> None:
    naming = [module for module, texts in texts_in_stages().items() if name in texts]
    assert len(naming) == 1, naming


@functools.cache
def texts_in_stages() -> dict[str, frozenset[str]]:
    """The strings in each module."""
    parsed = {
        path.relative_to(STAGES).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(STAGES.rglob("*.py"))
    }
    return {
        module: frozenset(
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        for module, tree in parsed.items()
    }


def test_a_fit_writes_the_columns_that_are_read() -> None:
    assert history_table([EpochRecord(1, 0.5, 0.7)]).schema == EPOCHS
    assert set(EPOCHS.names) < set(CANDIDATE_EPOCHS.names)


def test_a_probe_writes_the_columns_that_are_read(tmp_path: Path) -> None:
    ProbeCurves("layer", (Point("cosine", "share", 1.0, "1", 0.5),)).save(tmp_path)
    written = pq.read_table(tmp_path / "points.parquet").schema
    assert written.equals(POINTS)
    assert pa.schema([PROBE_CURVES.field(name) for name in written.names]) == written


def test_metrics_that_are_no_numbers_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_metrics(tmp_path, {"metric": "accuracy", "test": float("nan")})
    assert not list(tmp_path.iterdir())
