"""Every field of every kind reaches the key, and every config comes back from a node as it went in."""

import contextlib
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from permafrost.flows.methods.method import Method
from permafrost.flows.methods.probes import Probe
from permafrost.flows.nodes.latents import Latents
from permafrost.stages.corpus.source import TaskSource
from permafrost.stages.corpus.sources.dilution import DilutionCorpus
from permafrost.stages.embed import EmbedConfig
from permafrost.stages.finetune import losses  # noqa: F401 # its categories are found below
from permafrost.stages.finetune.config import FinetuneConfig, FinetuneOptim, FinetuneScoreConfig
from permafrost.stages.fit import FitConfig, OptimConfig
from permafrost.stages.freeze import AutoencoderConfig, PairFitConfig
from permafrost.stages.freeze.config import ClassifierConfig
from permafrost.stages.graph_encoders import encoder, readout  # noqa: F401 # likewise
from permafrost.stages.graph_encoders.kinds.pyg_relational import PygRelational
from permafrost.stages.graphs.facts import Facts
from permafrost.stages.graphs.given import GraphsForTexts
from permafrost.stages.graphs.knowledge_graph import KnowledgeSource
from permafrost.stages.graphs.relevance import Relevance
from permafrost.stages.heads.graph.pyg_conv import PygConv
from permafrost.stages.heads.pyg_pool import PygPoolHead
from permafrost.stages.kinds import Kind, all_categories, kind_name
from permafrost.stages.linear import LinearConfig, OnHeadConfig
from permafrost.stages.mteb_evaluation import HubTask
from permafrost.stages.probes import (
    GeometryConfig,
    TaskScoreConfig,
    TokenGraphConfig,
)
from permafrost.stages.probes.layer_probe import LayerProbeConfig
from permafrost.stages.scoring.controls import ControlConfig
from permafrost.stages.scoring.scored import ScoreConfig
from permafrost.stages.scoring.similarity import SimilarityConfig
from permafrost.stages.sensitivity import SensitivityConfig
from permafrost.stages.sensitivity.attention_map_config import AttentionMapConfig
from permafrost.stages.sensitivity.path_bound_config import PathBoundConfig
from permafrost.stages.token_prediction import LogitLensConfig, NextTokenConfig
from permafrost.storage.keys import digest, to_plain

UNIONS = (ControlConfig, NextTokenConfig)
PLAIN = (
    *(AttentionMapConfig, ClassifierConfig, PathBoundConfig),
    *(AutoencoderConfig, DilutionCorpus, EmbedConfig, FitConfig, GeometryConfig),
    *(Latents, LayerProbeConfig, LinearConfig, LogitLensConfig, OptimConfig, PairFitConfig),
    *(FinetuneConfig, FinetuneOptim, FinetuneScoreConfig, OnHeadConfig),
    *(ScoreConfig, SensitivityConfig, SimilarityConfig, TaskScoreConfig, TokenGraphConfig),
)
OF_CORPORA = TaskSource | KnowledgeSource | Relevance | Facts
NEEDED: dict[str, Any] = {
    "seed": 0,
    "ratio": 0.5,
    "head": {"kind": "mean"},
    "template": "say {text} again",
    "vectors": [{"method": "mean"}],
    "layer": "hidden/2",
    "path": "folder",
    "model": {"kind": "gt2vec", "description": "none"},
    "loss": {"kind": "binary"},
}
"""Values of fields without a default."""
NAMES = {
    PygConv: "GATv2Conv",
    PygPoolHead: "SoftmaxAggregation",
    PygRelational: "RGATConv",
    HubTask: "STS12",
}
"""Of classes of torch-geometric and of a task of mteb."""


def members(annotation: Any) -> Iterator[type[BaseModel]]:
    """Classes of a tagged union, however deep."""
    if get_origin(annotation) is Annotated:
        yield from members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from members(part)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


KINDS = [
    *PLAIN,
    *(kind for union in UNIONS for kind in members(union)),
    *(
        kind
        for category in all_categories()
        # The key of a corpus holds what its source's fields stand for: tests/stages/corpus and graphs.
        # Methods and probes make the configs of nodes, which stand above. Graphs for texts are embedded and
        # are in no key.
        if not issubclass(category.base, OF_CORPORA | Method | Probe | GraphsForTexts)
        for kind in category.kinds().values()
    ),
]


def kinds_of(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Those of a category, if it is the base of one."""
    for category in all_categories():
        if category.base is base:
            yield from category.kinds().values()


def made(kind: type[BaseModel]) -> BaseModel:
    """One of a kind, its fields at their defaults."""
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    if kind is PairFitConfig:
        return kind.model_validate({"seed": 0, "head": {"kind": "cosine_mlp"}})
    if kind is EmbedConfig:  # whose layers are chosen by something
        return kind.model_validate({"layers": "auto"})
    if kind is LayerProbeConfig:  # a method that pools both kinds of tensor
        return kind.model_validate({"method": "mean"})
    needed = NEEDED | {"name": NAMES.get(kind)}
    return kind.model_validate({name: needed[name] for name in required})


def others(value: Any, annotation: Any) -> Iterator[Any]:
    """Values that a field might also have."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated or origin in (Union, types.UnionType):
        for part in parts:
            yield from others(value, part)
    elif origin is Literal:
        yield from (part for part in parts if part != value)
    elif annotation is int:
        yield from (n for n in (0, 1, 2, 3, 4, 8, 64) if n != value)
    elif annotation is float:
        yield from (x for x in (0.25, 0.75, 1e-3, 2.0, 4.0) if x != value)
    elif annotation is str:
        yield from (
            s
            for s in (
                "2",
                "1-2",
                "hidden/1",
                "half",
                "say {text} twice",
                "{first} and {text}",
                "{text} is {mask}",
                "{placeholder} {text} in a word:",
                "GATConv",
                "MeanAggregation",
                *("cosine_pearson", "cosine_ap", "f1_weighted", "ami", "recall_at_1"),
            )
            if s != value
        )
    elif origin in (tuple, list):
        for part in parts:
            yield from ((other,) for other in others(None, part))
            yield from ((a, b) for a in others(None, part) for b in others(a, part))
    elif origin is dict:
        yield from ({"layer": ["hidden/1"]}, {"learn": True}, {"heads": 2})
    elif (
        isinstance(annotation, type)
        and issubclass(annotation, Kind)
        and kind_name(annotation) is None
    ):
        yield from (made(kind) for kind in kinds_of(annotation) if not isinstance(value, kind))
        if isinstance(value, BaseModel):
            yield from changed(value)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from changed(value if isinstance(value, annotation) else made(annotation))
        if value is not None and not isinstance(value, annotation):
            yield made(annotation)


def changed(config: BaseModel) -> Iterator[BaseModel]:
    """The same config with one field changed, all that are valid."""
    for name in type(config).model_fields:
        yield from with_other(config, name)


def with_other(config: BaseModel, name: str) -> Iterator[BaseModel]:
    """The same config with another value of one field, all that are valid."""
    field = type(config).model_fields[name]
    for value in others(getattr(config, name), field.annotation):
        # Some values of a field ask for one of another.
        for beside in ({}, {"encoders": {"early": 256, "late": 256}}):
            fields = {**dict(config), **beside, name: value}
            with contextlib.suppress(ValidationError):
                yield type(config).model_validate({k: fields[k] for k in type(config).model_fields})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_kind_changes_its_key(kind: type[BaseModel]) -> None:
    config = made(kind)
    assert kind.model_validate(to_plain(config)) == config
    keys = {digest(config)}
    for name in kind.model_fields:
        if name == "kind" or get_args(kind.model_fields[name].annotation) == (
            getattr(config, name),
        ):
            continue
        other = next(with_other(config, name), None)
        assert other is not None, f"no other value of {name} is known to this test"
        assert kind.model_validate(to_plain(other)) == other, name
        assert digest(other) not in keys, f"{name} is not in the key"
        keys.add(digest(other))
