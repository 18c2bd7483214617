"""A trained graph-text model in a home: what it reads, and how given graphs become its input."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.finish import require_finite
from permafrost.stages.encoder.plugin_code import require_same_code
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.lengths import measure
from permafrost.stages.extraction.target import MOVED, ExtractTarget, target_of_store
from permafrost.stages.finetune.data import BackboneTexts, FinetuneData
from permafrost.stages.finetune.embedding import embed_items, require_embeds
from permafrost.stages.finetune.graph_batches import ItemFeatures
from permafrost.stages.finetune.module import GraphTextModule
from permafrost.stages.finetune.token_place import require_room_for_token
from permafrost.stages.finetune.trained import Finetuned, load_finetuned
from permafrost.stages.graphs.assembling import Item, corpus_of_items
from permafrost.stages.graphs.given import (
    GraphsForTexts,
    GraphsForTextsConfig,
    TextRows,
    Triples,
    given_triples,
    require_told_by_triples,
    without_graphs,
)
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.source import GraphSource
from permafrost.stages.graphs.views import Place, descriptions_view
from permafrost.stages.wrong_fields import wrong_fields
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.errors import InputError
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

FINETUNE = "finetune"
"""Stage of its artifacts."""
GraphsOfTexts = GraphsForTexts | Mapping[str, Any] | Sequence[Triples | None] | None
"""Graphs for texts: a kind or its fields, the triples of each text's graph, or none at all."""


class _GraphsGiven(BaseModel):
    graphs: GraphsForTextsConfig


@dataclass(frozen=True)
class FittedGraphText:
    """A trained graph-text model, and the feature stores that it was trained from."""

    ref: ArtifactRef
    tuned: Finetuned
    texts: ExtractTarget
    """Of the backbone that reads texts: first a vector per text, then what enters each block, if the graph
    token is computed from that."""
    labels: ExtractTarget | None
    """Of the one that reads node labels, and texts too for some readouts; None for a model without graphs."""
    place: Place
    """Of a description beside its text."""
    source: Mapping[str, Any]
    """Settings of the corpus that it was trained on, as the corpus' key has them."""

    @property
    def reads_graphs(self) -> bool:
        """Whether it needs a graph, or at least None, for each text."""
        return _reads_graphs(self.tuned)

    @property
    def runs_backbone(self) -> bool:
        """Whether texts pass through the backbone with the model, not only through that of their features."""
        return self.tuned.config.runs_backbone

    @property
    def reads_node_texts(self) -> bool:
        """Whether the backbone that reads node labels reads the texts too."""
        return self.tuned.config.model.text_of_readout == "nodes"

    @property
    def tunes(self) -> bool:
        """Whether that backbone was trained, and so is another than that of the features."""
        return self.tuned.config.train.changes_states

    def corpus(
        self, rows: TextRows, graphs: GraphsOfTexts, progress: Progress, device: str = "auto"
    ) -> tuple[GraphCorpus, list[int]]:
        """Texts with their graphs as a corpus without cases, and the item of each text. A model that scores
        nodes runs on `device`.

        Raises:
            InputError: the model reads graphs and there are none, or the other way round; or the graphs are
                faulty, or not made as those that it was trained on.
        """
        model, relations = self.tuned.config.model, self.tuned.relations
        if self.reads_graphs != (graphs is not None):
            raise InputError(
                f"{self.ref} is a model of kind {quoted(model.kind)}, which reads "
                + (
                    "a graph beside each text, and none were given; give the graphs (--graphs on the command "
                    "line), or in Python None for each text without one"
                    if self.reads_graphs
                    else "texts alone, and graphs were given; leave them out"
                )
            )
        if graphs is None:
            given = without_graphs(rows, relations)
        elif isinstance(graphs, GraphsForTexts | Mapping):
            graphs = graphs_config(graphs)
            graphs.require_alike(self.source)
            given = graphs.given(rows, relations, progress, device)
        else:
            if isinstance(graphs, str) or not isinstance(graphs, Iterable):
                raise InputError(
                    f"the graphs are {quoted(graphs)}; give a list with the triples of each text's graph, or "
                    "fields such as {'kind': 'linked', ...}"
                )
            require_told_by_triples(self.source)
            link = self.source.get("linking") != "none"
            source = CORPUS_SOURCES.find(self.source["kind"])
            assert source is not None, "its code was found"
            assert issubclass(source, GraphSource), "a model of graphs was trained on graphs"
            given = given_triples(
                rows, list(graphs), relations, link=link, label_given=source.label_given
            )
        collector, items = given
        if model.reads_graphs and self.source.get("query_text") == "question":
            items = self._from_questions(rows, graphs, items)
        return corpus_of_items(items, collector, relations, self.tuned.relation_words)

    def _from_questions(
        self, rows: TextRows, graphs: GraphsOfTexts, items: Sequence[Item]
    ) -> list[Item]:
        """Query nodes start from the question alone, as in training."""
        asked = graphs.queries(rows) if isinstance(graphs, GraphsForTexts) else None
        if asked is None:
            raise InputError(
                f"{self.ref} was trained with query nodes that start from the question alone (query_text: "
                "question), and these graphs do not tell it from the text; give graphs of kind 'linked' with "
                "'query' and 'answer', the columns of question and choice, or use a model with query_text: "
                "question_and_choice"
            )
        return [replace(item, query=query) for item, query in zip(items, asked, strict=True)]

    def descriptions(self, corpus: GraphCorpus) -> list[str] | None:
        """The description of each item with its text; None for a model that embeds none."""
        if not self.tuned.config.model.embeds_descriptions:
            return None
        view = descriptions_view(
            corpus,
            self.place,
            lambda texts: measure(self.texts, texts).truncated.tolist(),
        )
        return [view.texts[int(row)] for row in view.examples.column("text").to_numpy()]

    def vectors(
        self,
        corpus: GraphCorpus,
        features: ItemFeatures,
        module: GraphTextModule,
        backbone: Backbone | None,
        device: str,
        progress: Progress,
    ) -> Vectors:
        """The embedding of every item.

        Args:
            corpus: of the items.
            features: of its labels, texts and descriptions, as far as the model reads them.
            module: that `Finetuned.module` made for this backbone.
            backbone: that reads the texts; None for a model that does not run it.
            device: where to compute, without a backbone.
            progress: receives the items that are done.

        Raises:
            InputError: a text is too long for a token beside it, or a vector is not finite.
        """
        live = None
        if backbone is not None:
            encoded = self.texts.encoded(corpus.texts)
            if self.tuned.config.model.token_place is not None:
                require_room_for_token(encoded, corpus.texts, self.texts.sizes)
            described = self.descriptions(corpus) if self.tunes else None
            live = BackboneTexts(
                backbone,
                self.texts.recipe,
                encoded,
                None if described is None else self.texts.encoded(described),
            )
            device = str(backbone.device)
        found = embed_items(
            self.tuned, module, FinetuneData(corpus, features, live), device, progress
        )
        texts = corpus.items.column("text").to_pylist()
        require_finite(found, lambda i: f"the text {quoted(corpus.texts[texts[i]])} with its graph")
        return found


def graphs_config(given: GraphsForTexts | Mapping[str, Any]) -> GraphsForTexts:
    """The kind of these fields.

    Raises:
        InputError: there is no such kind, or its fields are wrong.
    """
    if isinstance(given, GraphsForTexts):
        return given
    fields = {"graphs": given}
    try:
        return _GraphsGiven.model_validate(fields).graphs
    except ValidationError as error:
        raise InputError(wrong_fields(error, _GraphsGiven, fields, "; ")) from error


def graphs_record(graphs: GraphsOfTexts) -> dict[str, Any] | None:
    """What a record says of given graphs: the kind and its fields; None for triples, and for none at all."""
    if isinstance(graphs, GraphsForTexts | Mapping):
        return graphs_config(graphs).model_dump(mode="json")
    return None


@dataclass(frozen=True)
class GraphTextUse:
    """What a trained graph-text model is for, told where a command cannot use it."""

    what: str
    """The model, and what it reads."""
    reads_graphs: bool
    """Whether that is a graph beside each text."""
    advice: str
    """How its vectors are had."""


def graph_text_use(home: Path, name: str) -> GraphTextUse | None:
    """What an artifact is for, if it is a graph-text model; None for an artifact of another stage.

    Raises:
        NotFoundError: there is no such artifact.
        InputError: it cannot embed other texts.
        CorruptDataError: its files are damaged.
    """
    artifacts = ArtifactStore(home)
    ref = artifacts.find(name)
    if ref.stage != FINETUNE:
        return None
    tuned = load_finetuned(artifacts.open(ref))
    require_embeds(tuned, name)
    reads_graphs = _reads_graphs(tuned)
    reads = "a graph beside each text" if reads_graphs else "texts alone"
    flags = f"--head {name}{' --graphs ...' if reads_graphs else ''}"
    return GraphTextUse(
        f"{name} is a graph-text model of kind {quoted(tuned.config.model.kind)}, which reads {reads}",
        reads_graphs,
        f"for new texts it has vectors: 'permafrost embed {flags}', or permafrost.encode in Python",
    )


def _reads_graphs(tuned: Finetuned) -> bool:
    model = tuned.config.model
    return model.reads_graphs or model.embeds_descriptions


def find_graph_text(home: Path, name: str, backbone: str | None) -> FittedGraphText:
    """Find a trained graph-text model; reads and hashes the backbones' files, loads no weights of theirs.

    Args:
        home: where artifacts and feature stores lie.
        name: `finetune/<key>`, or the beginning of a key.
        backbone: where the backbone that reads texts is now; None if it has not moved.

    Raises:
        NotFoundError: there is no such artifact, or its feature store is gone.
        InputError: it is not a graph-text model, it cannot embed other texts, or it uses a plug-in whose code
            has changed.
        IdentityMismatchError: the backbone is a different one; the message has both digests.
    """
    artifacts = ArtifactStore(home)
    ref = artifacts.find(name)
    if ref.stage != FINETUNE:
        raise InputError(f"{name} is a {ref.stage} artifact; give one of stage {FINETUNE}")
    spec, folder = artifacts.manifest(ref).spec, artifacts.open(ref)
    require_same_code(str(ref), spec.code)
    tuned = load_finetuned(folder)
    require_embeds(tuned, str(ref))
    model = tuned.config.model
    # In the order in which the node reads them: texts, labels, texts as labels are read, descriptions.
    read = [i.split("/", 2)[1:] for i in spec.inputs if i.startswith("features/")]
    if model.reads_descriptions and not tuned.config.train.changes_states:
        read.pop()
    if model.text_of_readout == "nodes":
        read.pop()
    of_labels = read.pop() if model.reads_graphs else None
    record = FeatureStore.open(store_folder(home, read[0][0])).record
    texts = target_of_store(record, tuple(array for _, array in read), backbone)
    labels = None
    if of_labels is not None:
        other = FeatureStore.open(store_folder(home, of_labels[0])).record
        is_same = other.identity.weights_digest == record.identity.weights_digest
        # Only one place can be told, that of the texts' backbone.
        where, advice = (backbone, MOVED) if is_same else (None, "")
        labels = target_of_store(other, (of_labels[1],), where, advice)
    # The first is the corpus itself, others are views of it.
    corpora = [parse_ref(i) for i in spec.inputs if i.startswith("corpus/")]
    configs = [artifacts.manifest(ref).spec.config for ref in corpora]
    place: Place = "before"
    if model.embeds_descriptions:
        place = next(c["place"] for c in configs if c.get("role") == "descriptions")
    return FittedGraphText(ref, tuned, texts, labels, place, configs[0])
