"""A stage that adds its inputs, and may fail: a graph to run engines on."""

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, Resources, import_path
from permafrost.flows.stage import Stage
from permafrost.storage.artifacts import Draft
from permafrost.storage.durable import read_json, write_json
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress


class Sum(Stage):
    """Its own number plus the numbers of its inputs."""

    name = "sum"

    @classmethod
    def code(cls, entries: object) -> dict[str, str]:
        return {}

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        if node.config["number"] < 0:
            raise InputError("numbers below zero are refused")
        found = sum(read_json(context.open(i) / "sum.json") for i in node.inputs)
        write_json(draft.folder / "sum.json", node.config["number"] + found)


def backbone_total(label: str, number: int) -> Node:
    """A node that says that it runs the backbone."""
    return Sum.node(label, {"number": number}, [], resources=Resources(backbone=True))


def total(
    label: str, number: int, *upstream: Node, after: tuple[Node, ...] = (), stores=()
) -> Node:
    """A node of the sum of `number` and what `upstream` came to."""
    return Sum.node(
        label,
        {"number": number},
        [Input(name="summand", ref=n.id, loader=import_path(read_json)) for n in upstream],
        after=[n.id for n in after],
        resources=Resources(stores=tuple(stores)),
    )
