"""The two experiment files with GLOT's grid: what the paper prints, and a part of it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from permafrost.flows.experiment import Experiment
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.methods.head import HeadMethod
from permafrost.stages.fit import FitConfig
from permafrost.stages.heads import GlotHead
from tests.flows.looked import Looked
from tests.stages.extraction.tiny_models import WORDS

EXPERIMENTS = Path(__file__).parents[2] / "experiments" / "papers" / "glot"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files look for MRPC: a few made-up pairs."""
    rows = {
        "sentence1": WORDS[:4],
        "sentence2": WORDS[4:8],
        "label": [0, 1, 0, 1],
        "idx": [*range(4)],
    }
    (tmp_path / "glue_mrpc").mkdir()
    for split in ("train", "validation", "test"):
        pq.write_table(pa.table(rows), tmp_path / "glue_mrpc" / f"{split}.parquet")
    monkeypatch.setenv("PERMAFROST_DATA", str(tmp_path))
    return tmp_path


def read(name: str, backbone: Path) -> tuple[Experiment, tuple[FitConfig, ...]]:
    """The file with a small backbone, and the candidates of its grid."""
    small = [f"backbone.source={backbone}", "backbone.max_length=16"]
    experiment = load_experiment(EXPERIMENTS / name, small)
    method = experiment.methods["GLOT"]
    assert isinstance(method, HeadMethod)
    cell = experiment.cell("GLOT", "MRPC", experiment.seeds[0])
    assert cell.named_metric is not None
    found = method.candidates(cell.task_config.task_kind, cell.named_metric, cell.seed)
    return experiment, tuple(found.values())


@pytest.mark.parametrize(
    ("name", "n_candidates", "n_fits"),
    [
        pytest.param("paper/table6.yaml", 3 * 3 * 2 * 4 * 3 * 3 * 3, 1, marks=pytest.mark.deep),
        ("table6.yaml", 48, 3),
    ],
)
def test_the_graph_of_a_grid_is_built(
    data: Path, tiny_bert: Path, tmp_path: Path, name: str, n_candidates: int, n_fits: int
) -> None:
    experiment, candidates = read(name, tiny_bert)
    assert len(set(map(str, candidates))) == n_candidates
    dag = Looked(experiment, tmp_path / "home")
    assert {row for row, _, _ in dag.nodes.scores} == {"GLOT", "GLOT, shuffled labels"}
    assert len(dag.nodes.scores) == 2 * n_fits
    assert len(dag.nodes.fits) == 2 * n_fits + 1, "and a constant answer"
    assert len(dag.nodes.graph) == 4 + n_fits * (n_candidates + 4), "a node for each candidate"


def test_the_papers_grid_has_the_values_of_its_table_6(data: Path, tiny_bert: Path) -> None:
    experiment, candidates = read("paper/table6.yaml", tiny_bert)
    heads = [c.head for c in candidates if isinstance(c.head, GlotHead)]
    assert len(heads) == len(candidates)
    assert {c.optim.lr for c in candidates} == {1e-3, 2e-4, 2e-5}
    assert {c.optim.weight_decay for c in candidates} == {0.0, 1e-5, 5e-5}
    assert {h.n_convs for h in heads} == {2, 4}
    assert {h.hidden for h in heads} == {64, 128, 256}
    assert {h.jumping for h in heads} == {"cat", "max", "mean", "none"}
    assert {h.project for h in heads} == {128, 256, 512}
    assert {h.tau for h in heads} == {0.1, 0.3, 0.6}
    # Section 4.1 and the released code: no schedule, no early end, one seed.
    assert {(c.optim.batch_size, c.optim.max_epochs, c.optim.patience) for c in candidates} == {
        (32, 2, None)
    }
    assert experiment.seeds == (42,)


def test_every_head_of_the_papers_grid_pools_tokens(data: Path, tiny_bert: Path) -> None:
    _, candidates = read("paper/table6.yaml", tiny_bert)
    heads = {str(c.head): c.head for c in candidates if isinstance(c.head, GlotHead)}
    tokens = torch.randn(9, 12, generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, 4, 9])
    for config in [h for h in heads.values() if h.tau == 0.3]:
        assert config.project is not None
        head = config.build(tokens.shape[1], torch.Generator().manual_seed(1))
        is_cat = config.jumping == "cat"
        width = config.project + config.n_convs * config.hidden if is_cat else config.hidden
        pooled = head(tokens, offsets)
        assert pooled.shape == (2, width)
        assert pooled.isfinite().all()
