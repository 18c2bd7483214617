"""What nodes read of feature stores: how it stands in a node, and how it is opened again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from permafrost.flows.context import RunContext
from permafrost.flows.graph import FEATURES, Input, Node, import_path
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.adapted_stores import open_store
from permafrost.storage.features.layout import StoreSizes, array_spec
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.readers import FeatureReader, open_reader

_NAME = "features"


@dataclass(frozen=True)
class Reading:
    """Arrays of the stores of one recipe, for the texts of one corpus."""

    inputs: tuple[Input, ...]
    """Store by store, the arrays in their order."""
    after: tuple[str, ...]
    """The extractions that fill them."""
    run_facts: Mapping[str, Any]
    """Sizes of the backbone, which no store holds in full."""


def reading(
    store_names: Sequence[str], arrays: Sequence[str], sizes: BackboneSizes, after: Sequence[str]
) -> Reading:
    """These arrays of these stores, each by its id or name."""
    inputs = tuple(
        Input(name=_NAME, ref=f"{FEATURES}{store}/{array}", loader=import_path(StoredFeatures))
        for store in store_names
        for array in arrays
    )
    return Reading(inputs, tuple(after), {"sizes": sizes.model_dump(mode="json")})


def corpus_input(node: Node, name: str = "corpus") -> Input:
    """The corpus that a node makes, as another node's input."""
    return Input(name=name, ref=node.id, loader=import_path(Corpus.load))


def stores(node: Node, context: RunContext) -> list[FeatureStore]:
    """The feature stores that a node reads, each once, in order."""
    return [open_store(context.home, name) for name in stores_of(node)]


def features(node: Node, context: RunContext) -> list[StoredFeatures]:
    """Features of the texts of a node's corpus, one per prompt of an ensemble."""
    digests = context.corpus(node.input("corpus")).digests
    sizes = sizes_of(node)
    return [StoredFeatures(store, sizes, digests) for store in stores(node, context)]


def readers(
    node: Node,
    context: RunContext,
    arrays: Sequence[str] | None = None,
    tokens: Literal["span", "all"] = "span",
    corpus: str = "corpus",
) -> dict[str, FeatureReader]:
    """Readers of arrays of a node's only store, over the texts of its corpus; of all that it reads if not
    given. `tokens`: as in `open_reader`; `corpus`: the input that is the corpus."""
    (store,) = stores(node, context)
    of, budget = context.corpus(node.input(corpus)), context.runtime.memory_bytes
    names = arrays_of(node) if arrays is None else arrays
    return {
        a: open_reader(store, a, of.digests, budget_bytes=budget, tokens=tokens, texts=of.texts)
        for a in names
    }


def stores_of(node: Node) -> tuple[str, ...]:
    """The feature stores that a node reads, each once, in order, by id or name."""
    return tuple(dict.fromkeys(i.ref.split("/")[1] for i in node.inputs_named(_NAME)))


def arrays_of(node: Node) -> tuple[str, ...]:
    """The arrays that a node reads, in order."""
    return tuple(dict.fromkeys(i.ref.split("/", 2)[2] for i in node.inputs_named(_NAME)))


def sizes_of(node: Node) -> BackboneSizes:
    """Of the backbone whose features a node reads."""
    return BackboneSizes.model_validate(node.run_facts["sizes"])


def width_of(node: Node, array: str) -> int:
    """Numbers in a row of an array that a node reads."""
    s = sizes_of(node)
    sizes = StoreSizes(
        n_layers=s.n_layers, d_model=s.d_model, d_value=s.d_value, n_attn_heads=s.n_attn_heads
    )
    # A width is the same in every storage dtype.
    return array_spec(array, sizes, "float32").width or 1
