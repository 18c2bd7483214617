"""The stage that chooses the layers of a method by its scores on the tasks of an evaluation."""

from collections.abc import Sequence
from functools import partial

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.nodes.corpora import require_task_unchanged
from permafrost.flows.nodes.evaluating import features_of, n_prompts
from permafrost.flows.nodes.reading import sizes_of
from permafrost.flows.stage import Stage
from permafrost.stages.embed.config import EmbedConfig
from permafrost.stages.mteb_evaluation.layer_choice import ChoiceTask, LayerChoice, choose_by_tasks
from permafrost.stages.mteb_evaluation.task import EVALUATION_TASKS
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress

CHOSEN = "chosen"
"""Name of the input that is a choice."""


class LayersBy(BaseModel):
    """By which scores layers are chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    evaluation: str = Field(min_length=1)
    """Name of the evaluation whose tasks score every layer, and layers together: dev data, on which the
    method itself is not reported."""
    most: PositiveInt | None = None
    """The largest number of layers that are combined: 1 for the best single one (an exit), None for as many
    as score best."""


class ChooseLayers(Stage):
    """Scores every layer of a method, and layers together, on tasks."""

    name = "layers"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        facts, most = node.run_facts, node.config["most"]
        tasks = [
            ChoiceTask(
                name,
                EVALUATION_TASKS.validate(facts["tasks"][name]["config"]),
                partial(features_of, sizes_of(node), context, facts["tasks"][name]["stores"]),
            )
            for name in node.config["tasks"]
        ]
        stores = next(iter(node.config["tasks"].values()))["stores"]
        config = EmbedConfig.model_validate(node.config["method"])
        chosen = choose_by_tasks(config, sizes_of(node), n_prompts(stores), tasks, most, progress)
        for task in tasks:
            key = node.config["tasks"][task.name]["key"]
            require_task_unchanged(task.config, key, node.label)
        chosen.save(draft.folder)
        draft.summary = {"method": facts["method"], **chosen.choice}


def chosen_input(node: Node) -> Input:
    """The choice of a node, as another node's input."""
    return Input(name=CHOSEN, ref=node.id, loader=import_path(LayerChoice.load))


def chosen_layers(node: Node, context: RunContext) -> tuple[int, ...] | None:
    """The layers that were chosen for a node; None for one whose layers are not chosen by an evaluation."""
    chosen: Sequence[LayerChoice] = [context.load(source) for source in node.inputs_named(CHOSEN)]
    return chosen[0].layers if chosen else None
