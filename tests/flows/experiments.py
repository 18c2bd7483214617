"""Experiments of tests: made-up pairs, the file, a first run, and the rows of its report."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from permafrost.flows.pipeline import PipelineResult, run_serially
from tests.stages.extraction.tiny_models import WORDS


def pairs(path: Path, n: int, seed: int) -> Path:
    """Graded pairs: the share of words that two texts have in common, times 5."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for _ in range(n):
        first = rng.sample(WORDS[:30], 6)
        kept = rng.randint(0, 6)
        second = first[:kept] + rng.sample(WORDS[:30], 6 - kept)
        grade = 5 * len(set(first) & set(second)) / 6
        rows.append({"a": " ".join(first), "b": " ".join(second), "score": grade})
    columns = {name: pa.array([r[name] for r in rows]) for name in rows[0]}
    pq.write_table(pa.table(columns), path)
    return path


def graded_task(folder: Path, n: int) -> dict[str, Any]:
    """The source of a task with `n` graded pairs in train, dev and test each."""
    splits = ("train", "dev", "test")
    return {
        "kind": "files",
        "files": {s: str(pairs(folder / f"{s}.parquet", n, i)) for i, s in enumerate(splits)},
        "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    """The experiment as a file."""
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def run_in(folder: Path, content: dict[str, Any]) -> tuple[Path, Path, PipelineResult]:
    """Run an experiment for the first time: its file, its home, and what came out."""
    path = write(folder / "experiment.yaml", content)
    return path, folder / "home", run_serially(path, folder / "home")


def rows_of(result: PipelineResult) -> list[dict[str, Any]]:
    """The results, as a report has them."""
    return pq.read_table(result.report.with_name("results.parquet")).to_pylist()
