"""The input of a fine-tuning: a corpus with graphs, stored vectors, and the backbone where one is needed.

Axes: c cases, i items, d width of an embedding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.finetune.backbone_pass import embedding_width
from permafrost.stages.finetune.by_length import read_by_length
from permafrost.stages.finetune.cached_keys import read_behind
from permafrost.stages.finetune.cases import Cases, cases_of
from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.graph_batches import (
    ItemFeatures,
    RandomRows,
    Rows,
    graph_batch,
    relations_of,
    texts_of,
)
from permafrost.stages.finetune.item_graphs import graphs_of
from permafrost.stages.finetune.losses.loss import ScoreLoss
from permafrost.stages.finetune.module import ItemBatch, ModelFacts
from permafrost.stages.finetune.recomputing import recomputing
from permafrost.stages.finetune.token_place import ReadAt, TokenPlace
from permafrost.stages.finetune.tuned import Tuned
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.readers import FeatureReader


@dataclass(frozen=True)
class BackboneTexts:
    """The backbone, and the texts of a corpus as its input."""

    backbone: Backbone
    recipe: Recipe
    """Resolved."""
    texts: Encoded
    descriptions: Encoded | None = None
    """Of items; only where the backbone is tuned, so that no store has their vectors."""


@dataclass(frozen=True)
class FinetuneData:
    """A corpus with graphs as a model reads it."""

    corpus: GraphCorpus
    features: ItemFeatures
    live: BackboneTexts | None
    """None for a model that does not run the backbone. One that is trained is changed, so nobody else reads
    it."""

    def cases(self, split: str) -> Cases:
        """The cases of a split, in their order; raises as `cases_of`."""
        return cases_of(self.corpus, split)

    def facts(self, config: FinetuneConfig) -> ModelFacts:
        """What a model is built for."""
        assert self.features.texts is not None
        labels = self.features.labels
        return ModelFacts(
            n_relations=relations_of(self.corpus),
            d_labels=0 if labels is None else labels.width,
            d_text=self.features.texts.width,
            d_token=0 if self.live is None else embedding_width(self.live.backbone),
            scores=isinstance(config.loss, ScoreLoss),
            maps_embeddings=config.maps_embeddings,
        )

    def controlled(self, config: FinetuneConfig, tuned: Tuned | None = None) -> "ItemReader":
        """Items under the config's controls; `tuned` is what is trained of the backbone."""
        return ItemReader(self, config, tuned)


class ItemReader:
    """Batches of items for one model.

    Args:
        data: of the corpus.
        config: says what the model reads, and the controls.
        tuned: what is trained of the backbone.
    """

    def __init__(self, data: FinetuneData, config: FinetuneConfig, tuned: Tuned | None) -> None:
        self._data, self._config, self._tuned = data, config, tuned
        seed = config.seed if config.graphs == "shuffled" else None
        self.graphs = graphs_of(data.corpus, seed, config.model.query_node)

    @cached_property
    def _features(self) -> ItemFeatures:
        features = self._data.features
        if self._config.node_features == "stored" or features.labels is None:
            return features
        return replace(features, labels=RandomRows(features.labels.width, self._config.seed))

    def batch(
        self, items: NDArray[np.int64], device: torch.device, described: bool = True
    ) -> ItemBatch:
        """What the model reads of these items, or, if not `described`, what it reads but for its second
        branch."""
        corpus, features, model = self._data.corpus, self._features, self._config.model
        reads_descriptions = model.embeds_descriptions or (model.reads_descriptions and described)
        graphs = None
        if model.reads_graphs:
            own, readout = self.graphs[items], model.text_of_readout
            batch = graph_batch(corpus, features, items, own, model.query_node, readout)
            graphs = batch.to(device)
        live, rows = self._data.live, texts_of(corpus, items)
        assert features.texts is not None
        texts, descriptions = partial(_stored, features.texts, rows, device), None
        if reads_descriptions and features.descriptions is not None:
            descriptions = partial(_stored, features.descriptions, items, device)
        if self._config.train.changes_states:
            assert live is not None
            texts, descriptions = partial(self._read, live, live.texts, rows), None
            if reads_descriptions and live.descriptions is not None:
                descriptions = partial(self._read, live, live.descriptions, items)
        states = None if live is None else partial(self._read, live, live.texts, rows)
        if live is not None and features.entering is not None:
            states = partial(_behind, live.backbone, features.entering, rows)
        return ItemBatch(len(items), graphs, texts, descriptions, states)

    def mean_states(self, items: NDArray[np.int64]) -> Float[Tensor, "i d"]:
        """The mean of each text's states over its recipe's span, without a graph token."""
        live, rows = self._data.live, texts_of(self._data.corpus, items)
        assert live is not None, "a graph token needs the backbone"
        return self._read(live, live.texts, rows, read="mean")

    def _read(
        self,
        live: BackboneTexts,
        texts: Encoded,
        rows: NDArray[np.int64],
        tokens: Tensor | None = None,
        place: TokenPlace = "first",
        read: ReadAt | None = None,
    ) -> Float[Tensor, "i d"]:
        is_again = self._config.optim.activations == "recomputed" and torch.is_grad_enabled()

        @contextmanager
        def around() -> Iterator[None]:
            with (
                nullcontext() if self._tuned is None else self._tuned.drawing(),
                recomputing(live.backbone) if is_again else nullcontext(),
            ):
                yield

        picked, at = texts.take(rows), read or self._config.read
        return read_by_length(live.backbone, picked, live.recipe, at, tokens, place, around)


def _stored(vectors: Rows, rows: NDArray[np.int64], device: torch.device) -> Float[Tensor, "i d"]:
    return torch.from_numpy(vectors.take(rows)).to(device)


def _behind(
    backbone: Backbone,
    entering: Sequence[FeatureReader],
    rows: NDArray[np.int64],
    tokens: Tensor,
    place: TokenPlace,
) -> Float[Tensor, "i d"]:
    assert place == "last", "in front of a text a graph token changes what is stored of it"
    texts, at = np.unique(rows, return_inverse=True)
    stored = (next(reader.subset(texts).in_order(len(texts)))[1] for reader in entering)
    return read_behind(backbone, [one.take(at) for one in stored], tokens)
