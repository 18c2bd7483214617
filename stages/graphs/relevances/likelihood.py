"""Relevance by likelihood: how well a language model predicts the node's label after the text.

Source: QA-GNN scores a node by RoBERTa's mean log-probability of text and node together, nothing masked. Here
only the label's tokens count, and a token is never seen by the prediction of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.graphs.language_models import (
    LanguageModel,
    load_language_model,
    model_facts,
)
from permafrost.stages.graphs.relevance import Relevance
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

_BLOCK = 4096
"""Nodes that are scored before the progress display is told."""


class LikelihoodRelevance(Relevance):
    """The mean log-probability of the label's tokens behind the text, in nats.

    Of a decoder, each token given those before it; of an encoder, the pseudo-log-likelihood: each token
    masked in turn, given all others (Salazar et al. 2020). A pair of text and node is a pass of a decoder,
    and as many passes of an encoder as the label has tokens: for large sets `cosine` is the affordable one.
    """

    kind: Literal["likelihood"] = "likelihood"
    backbone: BackboneConfig
    """A model whose checkpoint holds its language model head; of a text beyond `max_length` the beginning is
    cut off."""

    def facts(self) -> dict[str, Any]:
        """The model by the digests of its files."""
        return {"kind": self.kind, "backbone": model_facts(self.backbone)}

    def scores(
        self,
        labels: Sequence[str],
        texts: Sequence[str],
        nodes: Sequence[NDArray[np.int64]],
        progress: Progress,
        device: str,
    ) -> list[NDArray[np.float32]]:
        """Mean log-probabilities, 0 or below; raises InputError if the model has no language model head, or
        an encoder no mask token."""
        model = load_language_model(self.backbone, device)
        if not model.is_decoder and model.tokenizer.mask_token_id is None:
            raise InputError(
                f"the tokenizer of {quoted(self.backbone.source)} has no mask token, so that an encoder "
                "cannot score nodes; use a decoder, or relevance of kind 'cosine'"
            )
        sizes = [len(some) for some in nodes]
        pairs = [
            (text, labels[int(node)])
            for text, some in zip(texts, nodes, strict=True)
            for node in some
        ]
        scores, have_tokens = np.empty(len(pairs), np.float32), np.empty(len(pairs), np.bool_)
        progress.start("score nodes", len(pairs), "nodes")
        try:
            for at in range(0, len(pairs), _BLOCK):
                block = pairs[at : at + _BLOCK]
                part = slice(at, at + _BLOCK)
                scores[part], have_tokens[part] = _likelihoods(model, block)
                progress.advance(len(block))
        finally:
            progress.finish()
        # A label without tokens, of characters that the tokenizer drops, is as relevant as the least of all.
        scores[~have_tokens] = scores[have_tokens].min(initial=0.0)
        return np.split(scores, np.cumsum(sizes)[:-1]) if sizes else []


@dataclass(frozen=True)
class _Prediction:
    """A token that the model predicts."""

    pair: int
    sequence: tuple[int, ...]
    at: int
    """The position whose output predicts it."""
    token: int


def _likelihoods(
    model: LanguageModel, pairs: Sequence[tuple[str, str]]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Means, as the model has them, and which labels have a token; 0 for one that has none."""
    # The tokens of one pair share a pass of a decoder.
    passes: dict[tuple[int, ...], list[_Prediction]] = {}
    for pair, (text, label) in enumerate(pairs):
        for one in _predictions(model, pair, text, label):
            passes.setdefault(one.sequence, []).append(one)
    sequences = list(passes)
    total, count = np.zeros(len(pairs)), np.zeros(len(pairs))
    for rows in model.batches(sequences) if sequences else ():
        ids, mask = model.padded([sequences[row] for row in rows])
        with torch.inference_mode():
            logits = model.model(input_ids=ids, attention_mask=mask).logits
        wanted = [(i, p) for i, row in enumerate(rows) for p in passes[sequences[row]]]
        at = logits[[i for i, _ in wanted], [p.at for _, p in wanted]].float()
        log_p = torch.log_softmax(at, dim=1)[range(len(wanted)), [p.token for _, p in wanted]]
        owners = [p.pair for _, p in wanted]
        np.add.at(total, owners, log_p.double().cpu().numpy())
        np.add.at(count, owners, 1)
    return (total / np.maximum(count, 1)).astype(np.float32), count > 0


def _predictions(model: LanguageModel, pair: int, text: str, label: str) -> list[_Prediction]:
    encoded = model.tokenizer(
        f"{text} {label}", return_offsets_mapping=True, return_special_tokens_mask=True
    )
    ids: list[int] = encoded["input_ids"]
    special: list[int] = encoded["special_tokens_mask"]
    ends = [end for _, end in encoded["offset_mapping"]]
    own = [i for i, end in enumerate(ends) if not special[i] and end > len(text)]
    first = next((i for i, flag in enumerate(special) if not flag), 0)
    if (over := len(ids) - model.max_length) > 0:
        # The special tokens in front and the label stay; what goes is the beginning of the text.
        over = min(over, max(min(own, default=first) - first, 0))
        ids = [*ids[:first], *ids[first + over :]]
        own = [i - over for i in own]
        ids, own = ids[: model.max_length], [i for i in own if i < model.max_length]
    if model.is_decoder:
        return [_Prediction(pair, tuple(ids), i - 1, ids[i]) for i in own if i > 0]
    mask = model.tokenizer.mask_token_id
    assert isinstance(mask, int), "checked when the scorer was made"
    return [_Prediction(pair, (*ids[:i], mask, *ids[i + 1 :]), i, ids[i]) for i in own]
