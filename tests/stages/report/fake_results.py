"""A small grid of plausible results on disk."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.metrics.records import Role
from permafrost.stages.report.attention import AttentionRows
from permafrost.stages.report.cells import Cell, read_results
from permafrost.stages.report.config import CurveAxis, ReportConfig
from permafrost.stages.report.costs import Extraction
from permafrost.stages.report.pretraining import PretrainingRun
from permafrost.stages.report.report import write_report
from permafrost.stages.report.tables import ResultsTable, tabulate
from permafrost.stages.report.tokens import Token
from permafrost.storage.keys import text_digest

WORDS = "river table note green seven walk often under lamp paper stone late"


@dataclass(frozen=True)
class FakeCorpus:
    """What a report reads of a corpus."""

    texts: tuple[str, ...]
    examples: pa.Table
    label_names: tuple[str, ...]
    task: str = "classification"


@dataclass
class Grid:
    """Everything `write_report` takes."""

    config: ReportConfig
    cells: list[Cell]
    corpora: dict[str, FakeCorpus]
    tokens: dict[str, list[str]]
    provenance: dict[str, str]
    layer_curves: pa.Table | None = None
    probes: pa.Table | None = None
    pretrainings: list[PretrainingRun] = field(default_factory=list[PretrainingRun])
    extractions: list[Extraction] = field(default_factory=list[Extraction])
    attention: AttentionRows | None = None

    def text_tokens(self, digests: Sequence[str]) -> dict[str, list[Token]]:
        return {
            d: [Token(t, is_special=t.startswith("[")) for t in self.tokens[d]]
            for d in digests
            if d in self.tokens
        }

    def write(self, folder: Path) -> Path:
        write_report(
            self.config,
            self.cells,
            self.corpora,
            self.text_tokens,
            self.provenance,
            folder,
            layer_curves=self.layer_curves,
            probes=self.probes,
            pretrainings=self.pretrainings,
            extractions=self.extractions,
            attention=self.attention,
        )
        return folder

    def edit_metrics(self, i: int, **changes: Any) -> None:
        path = self.cells[i].folder / "metrics.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def make_grid(
    folder: Path,
    tasks: Sequence[str] = ("ratio 0.2", "ratio 0.8"),
    methods: Sequence[str] = ("mean", "scorer", "glot"),
    controls: Sequence[str] = ("shuffled", "length"),
    seeds: Sequence[int] = (0, 1, 2),
    n_words: int = 14,
) -> Grid:
    """Write result folders and describe them."""
    rng = np.random.default_rng(7)
    grid = Grid(
        ReportConfig(
            title="Signal dilution",
            description="Does a **graph** help?\n\n- one\n- `two`",
            x_axis=CurveAxis(
                label="share of distractors", values={t: i / 4 for i, t in enumerate(tasks)}
            ),
        ),
        [],
        {task: _corpus(task, n_words) for task in tasks},
        {},
        {"feature store": "f3" * 16, "experiment": "dilution"},
    )
    for task, corpus in grid.corpora.items():
        grid.tokens |= {text_digest(t): ["[CLS]", *t.split(), "##s"] for t in corpus.texts}
        roles: dict[str, Role] = {
            **dict.fromkeys(methods, "method"),
            **dict.fromkeys(controls, "control"),
        }
        for name, role in roles.items():
            for seed in seeds if name != "length" else seeds[:1]:
                at = folder / "results" / f"{len(grid.cells):03d}"
                at.mkdir(parents=True)
                history = None if name == "length" else at / "history.parquet"
                key = f"score/{len(grid.cells):032x}"
                loss = None if history is None else "cross_entropy"
                cell = Cell(name, task, seed, role, at, history, key, loss)
                _write_results(cell, corpus, rng)
                grid.cells.append(cell)
    return grid


def results_table(cells: Sequence[Cell]) -> ResultsTable:
    return tabulate(read_results(cells))


def without(grid: Grid, method: str, task: str) -> Grid:
    """The grid less one method on one task."""
    return replace(grid, cells=[c for c in grid.cells if (c.method, c.task) != (method, task)])


def _corpus(task: str, n_words: int) -> FakeCorpus:
    words = WORDS.split()
    texts = tuple(
        " ".join([f"{task}-{i}".replace(" ", "-"), *(words[(i + j) % 12] for j in range(n_words))])
        for i in range(12)
    )
    return FakeCorpus(
        texts,
        pa.table(
            {
                "split": ["train"] * 4 + ["dev"] * 4 + ["test"] * 4,
                "text": pa.array(range(12), pa.int64()),
                "label": [float(i % 2) for i in range(12)],
            }
        ),
        ("absent", "present"),
    )


def _write_results(cell: Cell, corpus: FakeCorpus, rng: np.random.Generator) -> None:
    level = 0.5 if cell.role == "control" else {"mean": 0.7, "scorer": 0.8}.get(cell.method, 0.9)
    noise = rng.normal(0, 0.01, 2)
    metrics = {
        "metric": "accuracy",
        "dev": level + noise[0],
        "test": level + noise[1],
        "n_dev": 400,
        "n_test": 400,
        "majority": 0.5,
        "choice": {"layer": "hidden/6", "head.tau": [0.3, 0.6][cell.seed % 2], "epoch": cell.seed},
        "n_parameters": 1234 if cell.role == "method" else 3,
    }
    (cell.folder / "metrics.json").write_text(json.dumps(metrics))
    labels = [float(i % 2) for i in range(12)]
    pq.write_table(
        pa.table(
            {
                "split": ["dev"] * 4 + ["test"] * 4,
                "text": pa.array(range(4, 12), pa.int64()),
                "label": labels[4:],
                "prediction": [1.0] * 8,
                "score": [0.5] * 8,
            }
        ),
        cell.folder / "predictions.parquet",
    )
    if cell.role == "method":
        tested = range(8, 12)
        n = [len(corpus.texts[t].split()) + 2 for t in tested]
        weights = [
            np.full(k, 1 / k) if cell.method == "mean" else rng.dirichlet(np.full(k, 0.3))
            for k in n
        ]
        pq.write_table(
            pa.table(
                {
                    "text": pa.array(tested, pa.int64()),
                    "digest": [text_digest(corpus.texts[t]) for t in tested],
                    "weights": pa.array([w.tolist() for w in weights], pa.list_(pa.float32())),
                }
            ),
            cell.folder / "token_weights.parquet",
        )
    if cell.history is not None:
        climb = np.linspace(0.5, metrics["dev"], 4)
        pq.write_table(
            pa.table(
                {
                    "candidate": [0] * 4 + [1] * 4,
                    "candidate_json": ["{}"] * 8,
                    "epoch": [1, 2, 3, 4] * 2,
                    "train_loss": [0.7, 0.6, 0.5, 0.4] * 2,
                    "dev_metric": [*(climb - 0.1), *climb],
                }
            ),
            cell.history,
        )
