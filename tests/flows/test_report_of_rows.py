"""Attention rows and maps on their way from the store to the report, and the report into Prefect."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from permafrost.flows.nodes.report_writing import attention_rows
from permafrost.flows.pipeline import pipeline
from permafrost.stages.metrics.vector_map import read_vector_map
from permafrost.storage.keys import text_digest
from tests.flows.conftest import tiny_experiment
from tests.flows.looked import Looked, look

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture(scope="module")
def made(
    prefect_server: None, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Looked, Path]:
    """A finished experiment that captured attention rows, and the folder of its report."""
    folder = tmp_path_factory.mktemp("rows")
    content = tiny_experiment(tiny_bert)
    content |= {"name": "rows", "seeds": [0], "capture": "hidden=1-2@tokens,attention_rows=all"}
    del content["methods"]["shuffled"], content["methods"]["words"]
    path = folder / "rows.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    report = pipeline(str(path), str(folder / "home")).report.parent
    return look(path, folder / "home"), report


@pytest.mark.deep
def test_rows_of_a_text_are_those_of_the_store(made: tuple[Looked, Path]) -> None:
    dag, _ = made
    stored = attention_rows(dag.nodes.report, dag.context)
    assert stored is not None
    assert (stored.recipe, stored.blocks) == ("plain", (1, 2, 3))
    text = dag.corpus("ratio 0.5").texts[-1]
    found = stored.read([text_digest(text), "f" * 64], [1, 3])
    assert set(found) == {text_digest(text)}, "texts that are not stored are left out"
    (store,) = dag.open_stores()
    where = store.locate([text_digest(text)])
    start, n = int(where.token_start[0]), int(where.n_tokens[0])
    group = zarr.open_group(store.root / "features.zarr", mode="r")
    for block, rows in found[text_digest(text)].rows.items():
        array = group[f"attention_rows/{block}"]
        assert isinstance(array, zarr.Array)
        np.testing.assert_array_equal(rows, np.asarray(array[start : start + n], np.float32))
        np.testing.assert_allclose(rows.sum(axis=0), 1, atol=2e-3)
    assert len(found[text_digest(text)].tokens) == n
    assert found[text_digest(text)].rows.keys() == {1, 3}
    assert found[text_digest(text)].tokens[0].is_special


@pytest.mark.deep
def test_the_page_shows_every_block_and_a_map_of_every_method(made: tuple[Looked, Path]) -> None:
    dag, report = made
    page = (report / "report.html").read_text()
    section = page[page.index('id="attention"') : page.index('id="errors"')]
    assert (
        section.count("<strong>block 1</strong>") == section.count("<strong>block 2</strong>") == 4
    )
    maps = page[page.index('id="maps"') : page.index('id="tokens"')]
    n_test = 12
    assert maps.count("<title>") == 2 * 2 * n_test, "two tasks, two trained methods"
    for cell, node in dag.nodes.scores.items():
        found = read_vector_map(dag.artifacts.folder(node.spec.ref))
        assert found is not None
        test = dag.corpus(cell[1]).split("test")
        assert found.texts.tolist() == test.column("text").to_pylist()
        assert found.classes.tolist() == test.column("label").to_pylist()


def test_without_captured_rows_there_are_none(finished_home: Path) -> None:
    dag = look(finished_home.parent / "tiny.yaml", finished_home)
    assert attention_rows(dag.nodes.report, dag.context) is None
    (report,) = (finished_home / "artifacts" / "report").glob("*/report.html")
    assert 'id="attention"' not in report.read_text()


@pytest.mark.deep
def test_captured_rows_are_inputs_of_the_report(made: tuple[Looked, Path]) -> None:
    dag, _ = made
    inputs = dag.nodes.report.spec.inputs
    assert [i.split("/", 2)[2] for i in inputs if "attention_rows" in i] == [
        f"attention_rows/{block}" for block in (1, 2, 3)
    ]


@pytest.mark.deep
def test_all_tables_and_figures_are_in_the_artifact(made: tuple[Looked, Path]) -> None:
    _, report = made
    pictures = {p.stem.replace("_", " ") for p in (report / "figures").glob("*.png")}
    assert {"map 1", "map 2", "attention rows", "token weights", "metric"} <= pictures
    with get_client(sync_client=True) as client:
        chosen = ArtifactFilter(key=ArtifactFilterKey(any_=["rows-report"]))
        (found,) = client.read_artifacts(artifact_filter=chosen)
    shown = str(found.data)
    assert set(re.findall(r"!\[(.*?)\]\(data:image/png;base64,\S+\)", shown)) == pictures
    for name in ("results.md", "tables.md"):
        assert (report / name).read_text(encoding="utf-8").strip() in shown
