"""Texts and graphs in, vectors out: a trained graph-text model with its backbones loaded, and no store."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from permafrost.stages.corpus.given_texts import require_no_table
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.features import Features
from permafrost.stages.encoder.answers import require_strings
from permafrost.stages.encoder.code_of import code_of
from permafrost.stages.encoder.digests import weights_digest
from permafrost.stages.encoder.encoder import Encoder
from permafrost.stages.encoder.graph_text import FittedGraphText, GraphsOfTexts, find_graph_text
from permafrost.stages.encoder.runtime import Device, runtime_on
from permafrost.stages.encoder.vectors import Name
from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.extraction.recipes.inputs import require_readable
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.stages.finetune.graph_batches import ItemFeatures, Rows
from permafrost.stages.finetune.module import GraphTextModule
from permafrost.stages.graphs.given import TextRows
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class _StoredVector:
    """The vector of a text that a store would hold, unchanged."""

    array: str
    d_out: int
    module: None = None
    n_parameters: int = 0

    @property
    def identity(self) -> Mapping[str, Any]:
        """The array."""
        return {"array": self.array}

    def of(self, features: Features, progress: Progress) -> Vectors:
        """Read it."""
        _, rows = next(features.reader(self.array, "span").in_order(features.n_texts))
        return np.asarray(rows.data, np.float32)

    def joined(self, prompts: Sequence[Vectors], name: Name) -> Vectors:
        """Of a single recipe."""
        (vectors,) = prompts
        return vectors


@dataclass(frozen=True)
class _ComputedRows:
    """Vectors in memory, one per text."""

    values: Float32[np.ndarray, "n d"]

    @property
    def width(self) -> int:
        """Of a vector."""
        return self.values.shape[1]

    def take(self, indices: np.ndarray) -> np.ndarray:
        """These vectors."""
        return self.values[indices]


@dataclass(frozen=True)
class GraphTextEncoder:
    """A trained graph-text model with its backbones loaded; created by `load_graph_text`.

    Vectors are those of `permafrost embed` for the same model: node labels and texts are read as they were in
    training, rounded as in the feature store. Other batches change them by the noise of the compute dtype.
    """

    fitted: FittedGraphText
    texts: Encoder
    """Reads texts."""
    labels: Encoder | None
    """Reads node labels; None for a model without graphs."""
    module: GraphTextModule
    backbone: Backbone | None
    """Through which texts pass with the model: that of `texts` or, where it was trained, one of its own; None
    for a model that runs none."""

    def __repr__(self) -> str:
        ref, model = self.fitted.ref, self.fitted.tuned.config.model
        return f"GraphTextEncoder({ref.stage}/{ref.key[:8]}, {model.kind})"

    @cached_property
    def d_out(self) -> int:
        """Width of a vector."""
        return self.encode(["."], [None] if self.fitted.reads_graphs else None).shape[1]

    @property
    def relations(self) -> tuple[str, ...]:
        """Those that edges of graphs may have."""
        return self.fitted.tuned.relations

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that determines the vectors of texts and graphs, but for the noise of other batches and
        devices."""
        labels = self.fitted.labels
        return {
            "model": str(self.fitted.ref),
            "weights": weights_digest(self.fitted.tuned.state),
            "code": code_of([self.fitted.tuned.config], type(self)),
            "texts": self.fitted.texts.identity,
            "labels": None if labels is None else labels.identity,
        }

    def encode(
        self,
        texts: Iterable[str],
        graphs: GraphsOfTexts = None,
        progress: Progress | None = None,
    ) -> Float32[np.ndarray, "n d"]:
        """One vector per text with its graph, in order, `[n_texts, d_out]` float32.

        Args:
            texts: any number of texts.
            graphs: for each text the triples (head, relation, tail) of its graph, or None for a text without;
                or fields such as `{"kind": "linked", "knowledge": {...}}`. None for a model without graphs.
            progress: receives what is done; silent if not given.

        Raises:
            InputError: `texts` is a single text instead of a list, a text is blank or no text, there are
                other numbers of texts and graphs, an edge has a relation that the model does not know, or a
                vector is not finite.
            OverflowRangeError: an activation does not fit the dtype in which features are stored.
        """
        if isinstance(texts, str):
            raise InputError(
                f"encode was given the text {quoted(texts)} where a list of texts belongs; write [text]"
            )
        # A column of a table is a sequence too, and has no truth value.
        require_no_table(texts)
        texts = list(texts)
        require_strings("texts", texts)
        require_readable(texts)
        if not texts:
            return np.empty((0, self.d_out), np.float32)
        progress = progress or SilentProgress()
        corpus, numbers = self.fitted.corpus(
            TextRows(texts), graphs, progress, str(self.texts.backbone.device)
        )
        described = self.fitted.descriptions(corpus)
        of_nodes = self.labels if self.fitted.reads_node_texts else None
        features = ItemFeatures(
            None if self.labels is None else self._rows(self.labels, corpus.labels, progress),
            self._rows(self.texts, corpus.texts, progress),
            None
            if described is None or self.fitted.tunes
            else self._rows(self.texts, described, progress),
            node_texts=None if of_nodes is None else self._rows(of_nodes, corpus.texts, progress),
        )
        found = self.fitted.vectors(
            corpus,
            features,
            self.module,
            self.backbone,
            str(self.texts.backbone.device),
            progress,
        )
        return found[numbers]

    def _rows(self, reader: Encoder, texts: Sequence[str], progress: Progress) -> Rows:
        return _ComputedRows(reader.encode(list(texts), progress))


def load_graph_text(
    home: Path, name: str, backbone: str | None = None, *, device: Device = "auto"
) -> GraphTextEncoder:
    """A trained graph-text model with its backbones; one that reads texts and labels is loaded once.

    Raises as `find_graph_text`.
    """
    fitted = find_graph_text(home, name, backbone)
    runtime = runtime_on(device)
    facts = fitted.tuned.facts
    texts = _reader(fitted.texts, facts.d_text, runtime, None)
    labels = None
    if fitted.labels is not None:
        mine, other = fitted.labels.identity, fitted.texts.identity
        is_same = (mine.weights_digest, mine.compute_dtype) == (
            other.weights_digest,
            other.compute_dtype,
        )
        loaded = texts.backbone if is_same else None
        labels = _reader(fitted.labels, facts.d_labels, runtime, loaded)
    live = texts.backbone if fitted.runs_backbone else None
    if fitted.tunes:
        target = fitted.texts
        live = load_backbone(target.files, target.identity.compute_dtype, runtime.device)
    return GraphTextEncoder(fitted, texts, labels, fitted.tuned.module(live), live)


def _reader(
    target: ExtractTarget, width: int, runtime: ExtractRuntime, loaded: Backbone | None
) -> Encoder:
    if loaded is None:
        loaded = load_backbone(target.files, target.identity.compute_dtype, runtime.device)
    # What enters the blocks is not kept here: a graph token that stands last goes through with its text.
    array = target.arrays[0]
    return Encoder(
        loaded, (replace(target, arrays=(array,)),), _StoredVector(array, width), runtime
    )
