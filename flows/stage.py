"""What runs nodes: one `Stage` per kind of node, found by its import path."""

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
"""Where code counts in a key. The graph and the engines only wire."""


class Stage(ABC):
    """How nodes of one kind run. Never instantiated: all that varies is in the node."""

    name: ClassVar[str]
    """Of the stage, as in keys and in folders of the artifact store."""

    @classmethod
    @abstractmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        """Make the artifact of `node` in the folder of `draft`; its inputs are there."""

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        """Raise what `run` would raise of wrong input, as far as the node and its corpora tell.

        Writes nothing. The default knows nothing ahead.
        """
        return

    @classmethod
    def is_done(cls, node: Node, context: RunContext) -> bool:
        """Whether nothing is left to do; published, unless a stage knows better."""
        return context.artifacts.is_done(node.ref)

    @classmethod
    def code(cls, entries: Sequence[Any]) -> dict[str, str]:
        """Project functions that a node of these classes and functions reaches, `module:name` to digest."""
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
        """A node of this kind.

        Args:
            label: for people.
            config: a validated config, or plain JSON.
            inputs: what it is made from, in order.
            kinds: configs with kinds that its code depends on beside those in `config`.
            run_facts: what running needs and the key must not hold.
            after: ids of nodes to be done first.
            resources: what it needs for itself.
        """
        # Its stage, what loads its inputs, and the kinds that its config chose.
        loaders = (resolve(i.loader) for i in inputs)
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
    """What runs a node; its plug-ins are loaded, if this process has not."""
    use_sources(node.plugins)
    stage = resolve(node.kind)
    assert isinstance(stage, type), f"{node.kind} is not a class"
    assert issubclass(stage, Stage), f"{node.kind} is not a stage"
    return stage


def code_of(*entries: Callable[..., Any]) -> dict[str, str]:
    """The project functions that these reach, `module:name` to digest."""
    definitions: dict[str, str] = {}
    for entry in entries:
        definitions |= fingerprint(entry, (*PACKAGES, *packages())).definitions
    return dict(sorted(definitions.items()))
