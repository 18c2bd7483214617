"""Runs of ours under a rewiring, and the same by transformers with copies made one by one."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from permafrost.stages.extraction.backbone import (
    Backbone,
)
from permafrost.stages.extraction.recipes import OPENING, PLACEHOLDER, Encoded
from tests.stages.extraction import references
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import (
    EVERYTHING,
    ROW_TOLERANCE,
    Reference,
    close,
    embedding_matrix,
    embeddings,
    mean_row,
    per_text,
    rewired_run,
)
from tests.stages.extraction.tiny_models import N_LAYERS

HTP = "htp:start=1,stop=3"
INERT = "htp:start=1,stop=1"
REWIRED = range(1, 3)
STATES = "hidden=all"
NO_COPIES = np.zeros((0, 2), np.int64)


def run(
    backbone: Backbone, batch: Encoded, recipe: str = HTP, capture: str = EVERYTHING
) -> dict[str, Tensor]:
    return references.run(backbone, capture, batch, recipe)


def reference(
    both: Pair, batch: Encoded, i: int, blocks: range = REWIRED, padding: int = 0
) -> Reference:
    assert batch.copies is not None
    row = mean_row(both.reference)
    inputs = embeddings(both.reference, batch.token_ids[i], {PLACEHOLDER: row, OPENING: row})
    with torch.no_grad():
        return rewired_run(both, inputs, batch.copies[i], blocks, padding=padding)


def agrees_with(ours: dict[str, Tensor], theirs: Reference, batch: Encoded, i: int) -> None:
    rows = {name: per_text(values, batch)[i] for name, values in ours.items()}
    for k in range(N_LAYERS + 1):
        assert close(rows[f"hidden/{k}"], theirs.states[k]), k
    assert close(rows["hidden/final"], theirs.final)
    for k in range(1, N_LAYERS + 1):
        assert close(rows[f"values/{k}"], theirs.values[k - 1]), k
        expected = theirs.attentions[k - 1][:, -1].T
        assert float((rows[f"attention_rows/{k}"] - expected).abs().max()) <= ROW_TOLERANCE, k


def grow(folder: Path) -> PreTrainedModel:
    """transformers' own model with one token more, whose embedding is the mean of the others'."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    row = mean_row(model)
    model.resize_token_embeddings(model.config.vocab_size + 1, mean_resizing=False)
    with torch.no_grad():
        embedding_matrix(model)[-1] = row
    return model
