"""The graph of an experiment: nodes are data, edges are references.

Everything here is strings and JSON. A node names the class that runs it by import path, so it can be sent to
another process, and running it needs only the node and the home.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ConfigDict

from permafrost.flows.origin import Origin
from permafrost.storage.artifacts import ArtifactRef, ArtifactSpec

FEATURES = "features/"
"""Prefix of references to cached features: `features/<store_id>/<array>`."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Input(_Data):
    """One input of a node."""

    name: str
    """Its role in the node: `corpus`, `features`, `head`, ..."""
    ref: str
    """`<stage>/<key>` of an artifact, or `features/<store_id>/<array>`."""
    loader: str
    """Import path of the function that loads it, `module:name`. Its code is part of the node's key."""


class Resources(_Data):
    """What a node needs exclusively while it runs."""

    backbone: bool = False
    """Whether it runs the backbone; only one such node runs at a time."""
    stores: tuple[str, ...] = ()
    """Ids of the feature stores it may write; a store has one writer."""


class Node(_Data):
    """One artifact to be computed: what its key consists of, how it is computed, and its dependencies."""

    kind: str
    """Import path of its `Stage`, `module:name`."""
    label: str
    """Display name, e.g. `fit GLOT · ratio 0.9 · seed 2`."""
    stage: str
    """Name of the stage in the artifact store."""
    config: dict[str, Any]
    """The whole validated config in plain JSON types."""
    inputs: tuple[Input, ...] = ()
    code: dict[str, str] = {}
    """Project functions that run inside the node, `module:name` to digest."""
    run_facts: dict[str, Any] = {}
    """What running needs but the key must not contain: paths of hashed files, devices, names."""
    plugins: dict[str, str] = {}
    """Sources of the plug-in modules that it runs, by name; in a graph also of those that computed its
    inputs, as another process may not have their files."""
    after: tuple[str, ...] = ()
    """Nodes that have to be done first although they are not part of the key: the extraction of features."""
    resources: Resources = Resources()
    origins: tuple[Origin, ...] = ()
    """Where it stands in the experiment, to be recorded beside its result."""

    @cached_property
    def spec(self) -> ArtifactSpec:
        """What the key is computed from."""
        return ArtifactSpec(
            stage=self.stage,
            config=self.config,
            inputs=tuple(i.ref for i in self.inputs),
            code=self.code,
        )

    @cached_property
    def ref(self) -> ArtifactRef:
        """Stage and key."""
        return self.spec.ref

    @cached_property
    def id(self) -> str:
        """`<stage>/<key>`."""
        return str(self.ref)

    @cached_property
    def upstream(self) -> tuple[str, ...]:
        """Ids of the nodes that it depends on."""
        made = (i.ref for i in self.inputs if not i.ref.startswith(FEATURES))
        return tuple(dict.fromkeys((*made, *self.after)))

    def input(self, name: str) -> Input:
        """The one input of this name."""
        (source,) = self.inputs_named(name)
        return source

    def inputs_named(self, name: str) -> tuple[Input, ...]:
        """All inputs of this name, in order."""
        return tuple(i for i in self.inputs if i.name == name)


class Graph:
    """Nodes by id. Nodes with equal keys are merged, keeping the first label."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes: dict[str, Node] = {}
        for node in nodes:
            known = self._nodes.setdefault(node.id, node)
            if known is not node and (new := set(node.after).difference(known.after)):
                self._nodes[node.id] = _with(known, after=(*known.after, *sorted(new)))
        for node in self:
            missing = [ref for ref in node.upstream if ref not in self._nodes]
            assert not missing, (
                f"'{node.label}' needs {missing[0]}, which is not a node of the graph"
            )
        if any(node.plugins for node in self):
            self._hand_plugins_on()

    def _hand_plugins_on(self) -> None:
        """Give nodes the plug-ins of their inputs: loading what a plug-in computed takes its code, e.g. to
        build the head of a fit, or the recipe of features. It is not part of the key, which already has the
        fit's and the features'."""
        for node in self.ordered():
            sources = (*(self[ref].plugins for ref in node.upstream), node.plugins)
            plugins = {name: source for one in sources for name, source in one.items()}
            if plugins != node.plugins:
                self._nodes[node.id] = _with(node, plugins=plugins)

    def __iter__(self) -> Iterator[Node]:
        """Nodes in the given order."""
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, id: object) -> bool:
        return id in self._nodes

    def __getitem__(self, id: str) -> Node:
        return self._nodes[id]

    def ordered(self) -> list[Node]:
        """Nodes in topological order, otherwise in the given order."""
        placed: dict[str, Node] = {}
        for node in self:
            self._place(node, placed, ())
        return list(placed.values())

    def _place(self, node: Node, placed: dict[str, Node], path: tuple[str, ...]) -> None:
        if node.id in placed:
            return
        assert node.id not in path, f"the graph has a circle through '{node.label}'"
        for ref in node.upstream:
            self._place(self[ref], placed, (*path, node.id))
        placed[node.id] = node

    @cached_property
    def specs(self) -> dict[str, ArtifactSpec]:
        """Every node's spec by id."""
        return {node.id: node.spec for node in self}


def _with(node: Node, **fields: Any) -> Node:
    # Not model_copy, which would keep properties cached from the old fields.
    return Node(**{**{name: getattr(node, name) for name in Node.model_fields}, **fields})


def import_path(entry: Any) -> str:
    """The import path of a class or function, `module:name`; of one that is a path already, itself."""
    return entry if isinstance(entry, str) else f"{entry.__module__}:{entry.__qualname__}"


def resolve(path: str) -> Any:
    """The class or function at an import path."""
    module, _, name = path.partition(":")
    value: Any = import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value
