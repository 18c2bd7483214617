"""Small corpora whose labels need both text and graph, and everything that a model reads of them."""

import random

import numpy as np

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.recipes import encode, parse_recipe, resolve_recipe
from permafrost.stages.finetune.backbone_pass import read_states
from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.data import BackboneTexts, FinetuneData
from permafrost.stages.finetune.graph_batches import ItemFeatures, RandomRows, StoredRows
from permafrost.stages.finetune.losses import default_graph_text_loss
from permafrost.stages.finetune.token_place import ReadAt
from permafrost.stages.graphs.assembling import Case, Item, Judgement, Searched, assemble
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.views import descriptions_view
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader
from tests.stages.extraction.tiny_models import WORDS

RELATIONS = ("isA", "atLocation")
SPLITS = {"train": 12, "dev": 6, "test": 6}
NOUNS = WORDS[2:14]
ENCODER = {"kind": "relational_attention", "hidden": 8, "n_layers": 2, "heads": 2}


def pairs(sizes: dict[str, int] = SPLITS) -> GraphCorpus:
    """A text names two nouns; of half of the graphs they are the nodes. The last graph has no edge."""
    rng, graphs, cases = random.Random(1), GraphCollector(len(RELATIONS)), list[Case]()
    for split, n in sizes.items():
        for i in range(n):
            words = rng.sample(NOUNS, 4)
            nodes = words[:2] if i % 2 else words[2:]
            edges = [(0, i % 2, 1)] if i + 1 < n else []
            graph = graphs.add(nodes, edges, queries=[0])
            cases.append(Case(split, (Item(f"{words[0]} and {words[1]} . {i}", graph),), i % 2))
    return assemble("classification", cases, graphs, RELATIONS, label_names=("other", "same"))


def questions(sizes: dict[str, int] = SPLITS) -> GraphCorpus:
    """Questions of two or three choices, each choice with a graph."""
    rng, graphs, cases = random.Random(2), GraphCollector(len(RELATIONS)), list[Case]()
    for split, n in sizes.items():
        for i in range(n):
            words = rng.sample(NOUNS, 4)
            items = [
                Item(
                    f"{words[0]} is never {word} {i}",
                    graphs.add([words[0], word], [(0, 0, 1)], queries=[0], answers=[1]),
                    f"{words[0]} is never {i}",
                )
                for word in words[1 : 3 + i % 2]
            ]
            cases.append(Case(split, tuple(items), i % len(items)))
    return assemble("multiple_choice", cases, graphs, RELATIONS)


def retrieval() -> GraphCorpus:
    """Queries with one document each."""
    graphs, cases, judgements = GraphCollector(len(RELATIONS)), list[Case](), list[Judgement]()
    words = [*NOUNS, *WORDS[14:20]]
    documents = [Item(f"the {w} was under", graphs.add([w, "snow"], [(0, 0, 1)])) for w in words]
    for n, word in enumerate(words):
        split = "train" if n < 10 else "dev" if n < 14 else "test"
        query = Item(f"never {word}", graphs.add([word], [], queries=[0]))
        cases.append(Case(split, (query, documents[n]), 1))
        judgements.append(Judgement(split, query, documents[n], 1))
    searched = Searched(documents, judgements)
    return assemble("unlabelled", cases, graphs, RELATIONS, searched=searched)


def rows(vectors: np.ndarray) -> StoredRows:
    """As a store has them."""
    values = np.asarray(vectors, np.float32)
    return StoredRows(InMemoryReader("pooled", Ragged(values, np.arange(len(values) + 1))))


def data_of(corpus: GraphCorpus, backbone: Backbone, read: ReadAt = "last") -> FinetuneData:
    """Vectors that a store would hold, of this backbone in batches of one; label features are drawn."""
    recipe = resolve_recipe(parse_recipe("plain"), backbone.sizes)
    encoded = encode(recipe, backbone.tokenizer, list(corpus.texts), 50)
    view = descriptions_view(corpus)
    described = encode(recipe, backbone.tokenizer, list(view.texts), 58)
    item = view.examples.column("text").to_numpy()

    def states(texts: object) -> np.ndarray:
        one_by_one = (texts.take(np.array([i])) for i in range(len(texts)))  # type: ignore[attr-defined,arg-type]
        found = [read_states(backbone, one, recipe, read)[0].cpu().numpy() for one in one_by_one]
        return np.stack(found)

    features = ItemFeatures(RandomRows(6, 3), rows(states(encoded)), rows(states(described)[item]))
    live = BackboneTexts(backbone, recipe, encoded, described.take(item))
    return FinetuneData(corpus, features, live)


def config_of(corpus: GraphCorpus, model: dict[str, object], **changes: object) -> FinetuneConfig:
    """A small model; `optim` fields may be among the changes."""
    optim = {"lr": 0.01, "batch_size": 4, "max_epochs": 2}
    optim |= changes.pop("optim", {})  # type: ignore[call-overload]
    if "encoder" not in model and model["kind"] != "text_only":
        model = {**model, "encoder": ENCODER}
    loss = default_graph_text_loss(corpus.task)
    return FinetuneConfig.model_validate(
        {"model": model, "loss": loss, "optim": optim, "seed": 1, **changes}
    )
