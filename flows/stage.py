"""Stages run nodes: one `Stage` class per kind of node, found by import path."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, Resources, import_path, resolve
from permafrost.stages.kinds import kinds_in
from permafrost.stages.plugins import packages, sources_of, use_sources
from permafrost.storage.artifacts import Draft
from permafrost.storage.fingerprint import fingerprint
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress

PACKAGES = (
    "permafrost.flows.methods",
    "permafrost.flows.nodes",
    "permafrost.stages",
    "permafrost.storage",
)
"""Packages whose code is part of keys. The graph and the engines are not."""
_BACKBONE = "permafrost.stages.extraction.backbone:Backbone"
_HANDED_OVER = (
    "permafrost.stages.extraction.backbone:load_backbone",
    "permafrost.stages.extraction.target:ExtractTarget",
)


class Stage(ABC):
    """How nodes of one kind run. Never instantiated, as everything that varies is in the node."""

    name: ClassVar[str]
    """Name of the stage in keys and in folders of the artifact store."""

    @classmethod
    @abstractmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        """Compute the artifact of `node` in the folder of `draft`; its inputs exist."""

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        """Raise the input errors that `run` would raise, as far as the node and its corpora show them.

        Writes nothing. By default there is nothing to check.
        """
        return

    @classmethod
    def is_done(cls, node: Node, context: RunContext) -> bool:
        """Whether nothing is left to do; by default, whether the artifact is published."""
        return context.artifacts.is_done(node.ref)

    @classmethod
    def code(cls, entries: Sequence[Any]) -> dict[str, str]:
        """Project functions reached from these classes, functions and import paths of such, `module:name` to
        digest."""
        return code_of(*entries)

    @classmethod
    def node(
        cls,
        label: str,
        config: object,
        inputs: Sequence[Input],
        *,
        kinds: Sequence[object] = (),
        run_facts: Mapping[str, object] | None = None,
        after: Sequence[str] = (),
        resources: Resources | None = None,
    ) -> Node:
        """Create a node of this kind.

        Args:
            label: display name.
            config: a validated config, or plain JSON.
            inputs: its inputs, in order.
            kinds: configs of further kinds that its code depends on, besides those in `config`.
            run_facts: what running needs but the key must not contain.
            after: ids of nodes that have to be done first.
            resources: what it needs exclusively.
        """
        # Its stage, the loaders of its inputs, and the kinds in its config.
        loaders = (i.loader for i in inputs)
        entries = (cls, *loaders, *kinds_in(config), *kinds_in(tuple(kinds)))
        return Node(
            kind=import_path(cls),
            label=label,
            stage=cls.name,
            config=to_plain(config),
            inputs=tuple(inputs),
            code=cls.code(entries),
            plugins=dict(sources_of(entries)),
            run_facts=to_plain(run_facts or {}),
            after=tuple(dict.fromkeys(after)),
            resources=resources or Resources(),
        )


def stage_of(node: Node) -> type[Stage]:
    """The stage that runs a node; loads the node's plug-ins if necessary."""
    use_sources(node.plugins)
    stage = resolve(node.kind)
    assert isinstance(stage, type), f"{node.kind} is not a class"
    assert issubclass(stage, Stage), f"{node.kind} is not a stage"
    return stage


def code_of(*entries: Callable[..., Any] | str) -> dict[str, str]:
    """The project functions that these reach, `module:name` to digest; functions, or import paths of some
    that are not imported for it.

    A backbone is loaded by whoever runs the stage and handed over, as is what turns texts into its tokens, so
    no name in the stage leads to its hooks, its attention function or the tokenisation: wherever the class of
    backbones is reached, they count as well.
    """
    definitions: dict[str, str] = {}
    for entry in entries:
        definitions |= fingerprint(entry, (*PACKAGES, *packages())).definitions
    if _BACKBONE in definitions:
        for entry in _HANDED_OVER:
            definitions |= fingerprint(entry, (*PACKAGES, *packages())).definitions
    return dict(sorted(definitions.items()))
