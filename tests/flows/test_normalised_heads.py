"""`normalise: l2` of a head: evaluations get its vectors at length 1, and what is trained stays as it was."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.mteb_evaluation.vectors import Embedding
from tests.flows.experiments import run_in
from tests.flows.looked import look
from tests.flows.small_evaluations import experiment, write_data
from tests.flows.texts.test_embed_command import permafrost as permafrost

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.deep
def test_evaluations_read_unit_vectors_of_the_same_fit(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content: dict[str, Any] = experiment(write_data(tmp_path), tiny_bert) | {"seeds": [0]}
    head = content["methods"]["head"]
    content["methods"] = {"raw": head, "unit": {**head, "normalise": "l2"}}
    tasks = content["evaluations"]["mteb"]["tasks"]
    content["evaluations"]["mteb"] |= {
        "methods": ["raw", "unit"],
        "tasks": {"sts": tasks["sts"], "classification": tasks["classification"]},
    }
    seen: dict[str, list[tuple[tuple[str, ...], Vectors]]] = {"raw": [], "unit": []}
    call = Embedding.__call__

    def kept(self: Embedding, texts: Sequence[str], role: str) -> Vectors:
        found = call(self, texts, role)  # pyright: ignore[reportArgumentType]
        seen[self.method].append((tuple(texts), found))
        return found

    monkeypatch.setattr(Embedding, "__call__", kept)
    path, home, result = run_in(tmp_path, content)
    assert result.computed["fit"] == 1
    nodes = look(path, home).nodes
    fits = {m: nodes.fits[m, "pairs", 0] for m in ("raw", "unit")}
    assert fits["raw"].id == fits["unit"].id
    assert nodes.scores["raw", "pairs", 0].id == nodes.scores["unit", "pairs", 0].id
    for name in ("sts", "classification"):
        raw, unit = (nodes.evaluations[m, name, 0] for m in ("raw", "unit"))
        assert raw.id != unit.id
        # As it was before there was a choice.
        assert raw.config["embedding"]["method"] == "head"
    assert len(seen["raw"]) == len(seen["unit"]) > 1
    for (texts, raw), (same, unit) in zip(seen["raw"], seen["unit"], strict=True):
        assert texts == same
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
        expected = torch.nn.functional.normalize(torch.from_numpy(raw).double()).numpy()
        np.testing.assert_allclose(unit, expected, atol=1e-6)
        assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1


def test_embed_writes_unit_vectors_of_a_head(
    permafrost: Callable[..., str], tiny_bert: Path, tmp_path: Path
) -> None:
    content: dict[str, Any] = experiment(write_data(tmp_path), tiny_bert) | {"seeds": [0]}
    content["methods"] = {"head": content["methods"]["head"]}
    del content["evaluations"]
    path, home, _ = run_in(tmp_path, content)
    artifact = str(look(path, home).nodes.fits["head", "pairs", 0].spec.ref)
    source = tmp_path / "texts.txt"
    source.write_text("snow\nthe deep lake freezes\nsnow\n")
    out, found = tmp_path / "out.parquet", list[np.ndarray]()
    for flags in ((), ("--normalise", "l2")):
        permafrost("embed", str(source), "--head", artifact, "-o", str(out), *flags)
        found.append(np.array(pq.read_table(out).column("embedding").to_pylist()))
    raw, unit = found
    np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)
    facts = json.loads(pq.read_schema(out).metadata[b"permafrost"])
    assert (facts["head"], facts["normalise"]) == (artifact, "l2")
    said = permafrost(
        "embed", str(source), "--head", artifact, "-o", str(out), "--normalise", "l1", code=2
    )
    assert "--normalise is 'l1'; write none or l2" in said
