"""Embeddings of texts with graphs by a trained graph-text model, from cached features as far as it can."""

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from permafrost.flows.texts.embedding import ExtractContext, Made, Unique, extract_unique
from permafrost.stages.corpus.text_format import USUAL, TextFormat
from permafrost.stages.encoder.graph_text import GraphsOfTexts, find_graph_text, graphs_record
from permafrost.stages.extraction.backbone import load_backbone
from permafrost.stages.extraction.device import device_name
from permafrost.stages.extraction.extract import ExtractReport
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.finetune.graph_batches import ItemFeatures, RandomRows, Rows, StoredRows
from permafrost.stages.graphs.given import TextRows
from permafrost.storage.keys import text_digest, to_plain
from permafrost.storage.readers import FeatureReader, open_reader
from permafrost.storage.texts import Texts, each_once

_BUDGET = 1 << 28


@dataclass(frozen=True)
class ByGraphText:
    """A trained graph-text model, on features as it was trained on."""

    artifact: str
    backbone: str | None
    """Where the backbone that reads texts is now; None if it has not moved."""
    graphs: GraphsOfTexts
    table: Path | None = None
    """The table whose column the texts are; None for texts that stand alone."""
    how: TextFormat = USUAL
    """How the table is written."""

    def make(self, texts: Texts, context: ExtractContext) -> Made:
        """A vector per text with its graph, and what they were computed from.

        Raises:
            InputError: as `find_graph_text` and `FittedGraphText.corpus`.
        """
        fitted = find_graph_text(context.home, self.artifact, self.backbone)
        corpus, items = fitted.corpus(
            TextRows(texts, self.table, self.how),
            self.graphs,
            context.progress("graphs"),
            context.runtime.device,
        )
        described = fitted.descriptions(corpus)
        target = fitted.texts
        load = cache(
            partial(
                load_backbone, target.files, target.identity.compute_dtype, context.runtime.device
            )
        )
        reports: list[ExtractReport] = []

        def is_shared(other: ExtractTarget) -> bool:
            mine = target.identity
            return (mine.weights_digest, mine.compute_dtype) == (
                other.identity.weights_digest,
                other.identity.compute_dtype,
            )

        def stored(of: ExtractTarget, texts: Texts, label: str) -> list[FeatureReader]:
            """Each array of a target, extracted where it is missing."""
            digests = texts.map(text_digest)
            unique = Unique(*each_once([texts], [digests]))
            own = replace(context, progress=lambda _: context.progress(label))
            report = extract_unique(of, unique, own, load if is_shared(of) else None)
            reports.append(report)
            return [
                open_reader(
                    report.store,
                    array,
                    digests,
                    budget_bytes=_BUDGET // len(of.arrays),
                    tokens="span" if at == 0 else "all",
                )
                for at, array in enumerate(of.arrays)
            ]

        labels: Rows | None = None
        node_texts: Rows | None = None
        if fitted.labels is not None:
            # Graphs of query nodes alone have no label.
            labels = RandomRows(fitted.tuned.facts.d_labels, 0)
            if len(corpus.labels):
                of_labels = stored(fitted.labels, Texts.of(corpus.labels), "extract labels")
                labels = StoredRows(of_labels[0])
            if fitted.reads_node_texts:
                (of_nodes,) = stored(
                    fitted.labels, Texts.of(corpus.texts), "extract texts for nodes"
                )
                node_texts = StoredRows(of_nodes)
        vectors, *entering = stored(target, Texts.of(corpus.texts), "extract texts")
        descriptions = None
        if described is not None and not fitted.tunes:
            vector = replace(target, arrays=target.arrays[:1])
            (of_items,) = stored(vector, Texts.of(described), "extract descriptions")
            descriptions = StoredRows(of_items)
        features = ItemFeatures(
            labels,
            StoredRows(vectors),
            descriptions,
            tuple(entering) if entering else None,
            node_texts,
        )
        backbone = load() if fitted.runs_backbone else None
        found = fitted.vectors(
            corpus,
            features,
            # One that was trained changes it, which is fine: all features were read before.
            fitted.tuned.module(backbone),
            backbone,
            device_name(context.runtime.device),
            context.progress("embed"),
        )
        arrays = [a for t in (target, fitted.labels) if t is not None for a in t.arrays]
        said: dict[str, Any] = {
            "head": self.artifact,
            "arrays": arrays,
            "stores": [to_plain(t.identity) for t in (target, fitted.labels) if t is not None],
            "graphs": graphs_record(self.graphs),
        }
        return Made(found[items], reports, said, sum(r.n_tokens for r in reports))
