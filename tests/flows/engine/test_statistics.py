"""Statistics of a store, added up by workers, against those of all its rows at once."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from permafrost.flows.cli.app import app
from permafrost.flows.engine_choice import Dask
from permafrost.flows.store_statistics import require_reachable
from permafrost.stages.embed.whitening import Whitening
from permafrost.stages.statistics import moments_of, statistics_of
from permafrost.storage.errors import InputError
from permafrost.storage.features.layout import SPAN
from permafrost.storage.features.store import FeatureStore, all_stores
from tests.storage.small_store import filled_store

RUNNER = CliRunner()


def rows_of(store: FeatureStore, array: str) -> np.ndarray:
    """All rows that poolings run over, by the shards."""
    found: list[np.ndarray] = []
    for number in store.segments():
        n = store.segment(number).n_tokens
        inside = store.open_shard(number, SPAN.name).read(0, n)
        found.append(store.open_shard(number, array).read(0, n)[inside])
    return np.concatenate(found)


@pytest.mark.deep
@pytest.mark.usefixtures("prefect_server")
def test_workers_add_up_what_a_store_holds(scheduler: str, finished: Path, tmp_path: Path) -> None:
    (store,) = all_stores(finished / "home")
    arguments = ["statistics", store.store_id[:8], "--home", str(finished / "home")]
    arguments += ["--engine", f"dask={scheduler}", "--arrays", "hidden/2, hidden/1", "--json"]
    arguments += ["--whitening", str(tmp_path / "maps"), "--components", "2"]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["n_segments"] == len(store.segments()) > 2
    assert list(printed["arrays"]) == ["hidden/1", "hidden/2"]
    for array, figures in printed["arrays"].items():
        rows = rows_of(store, array)
        whole = vars(statistics_of(moments_of(rows)))
        assert figures.pop("n_segments") == printed["n_segments"]
        assert figures == pytest.approx(whole, rel=1e-9)
        map_ = Whitening.load(tmp_path / "maps" / f"{array.replace('/', '_')}.safetensors")
        mapped = map_.apply(rows.astype(np.float32)).astype(np.float64)
        np.testing.assert_allclose(np.cov(mapped.T, bias=True), np.eye(2), atol=1e-3)


@pytest.mark.deep
@pytest.mark.usefixtures("prefect_server")
def test_a_half_extracted_array_is_named_and_a_damaged_cell_refused(
    scheduler: str, finished: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(finished / "home", home)
    (store,) = all_stores(home)
    arguments = ["statistics", store.store_id, "--home", str(home), "--arrays", "hidden/2"]
    arguments += ["--engine", f"dask={scheduler}"]
    last = store.segments()[-1]
    (store.root / "receipts" / f"{last:06d}" / "hidden" / "2.json").unlink()
    half = RUNNER.invoke(app, arguments)
    assert half.exit_code == 0, half.output
    assert f"hidden/2: {last} of {last + 1} segments; the others lack it" in half.stdout
    # A line for each array where a table is wider than the terminal, so that its name is never cut.
    assert "array hidden/2, rows " in half.stdout
    path = store.shard_path(0, "hidden/2")
    damaged = bytearray(path.read_bytes())
    damaged[10] ^= 1
    path.write_bytes(damaged)
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 1
    assert "CorruptDataError" in repr(result.exception)


def test_workers_elsewhere_must_reach_prefects_server() -> None:
    with temporary_settings({PREFECT_API_URL: None}):
        require_reachable(Dask())
        require_reachable(Dask("tcp://127.0.0.1:8786"))
        with pytest.raises(InputError, match=r"tcp://elsewhere:8786 .* PREFECT_API_URL is not"):
            require_reachable(Dask("tcp://elsewhere:8786"))
    with temporary_settings({PREFECT_API_URL: "http://elsewhere:4200/api"}):
        require_reachable(Dask("tcp://elsewhere:8786"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--engine", "serial"], "statistics are computed by Dask"),
        ([], "has an id that begins with '0000'"),
        (["--components", "3"], "--components is for --whitening FOLDER"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, more: list[str], message: str) -> None:
    (tmp_path / "features").mkdir()
    result = RUNNER.invoke(app, ["statistics", "0000", "--home", str(tmp_path), *more])
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ("value/*", "is called 'value/*'; there are attention_rows/1, hidden/1, pooled"),
        (
            "hidden/1, values/1",
            "is called 'values/1'; there are attention_rows/1, hidden/1, pooled",
        ),
        (",", "--arrays ',' names no array"),
    ],
)
def test_an_array_that_is_not_there_is_refused_before_workers_start(
    tmp_path: Path, arrays: str, message: str
) -> None:
    store = filled_store(tmp_path).store
    # Nothing listens there: what is asked for is looked up before.
    where = ["--home", str(tmp_path), "--engine", "dask=tcp://127.0.0.1:9"]
    result = RUNNER.invoke(app, ["statistics", store.store_id, *where, "--arrays", arrays])
    assert message in str(result.exception)
