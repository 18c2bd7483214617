"""Training the encoders of every layer that heads start from (FREEZE!)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.nodes.latents import latents
from permafrost.flows.nodes.reading import arrays_of
from permafrost.flows.nodes.resuming import device_checkpoint
from permafrost.flows.stage import Stage
from permafrost.stages.freeze.config import AutoencoderConfig, ClassifierConfig
from permafrost.storage.artifacts import Draft
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress

MEASURED_ON = "measured_on"
"""Name of the input whose texts are measured only."""


class Pretrain(Stage):
    """Trains the autoencoders of every layer."""

    name = "pretrain"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.freeze.pretrain import pretrain

        config = AutoencoderConfig.model_validate(node.config)
        file = device_checkpoint(node, context)
        rows, others = latents(node, context), None
        if node.inputs_named(MEASURED_ON):
            others = latents(node, context, MEASURED_ON)[_unseen(node, context)]
        result = pretrain(config, rows, progress, context.device, file, others)
        result.save(draft.folder)
        draft.summary = {n: node.run_facts[n] for n in ("pretraining", "task")}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        from permafrost.stages.freeze.pretrain import require_texts

        require_texts(len(context.corpus(node.input("corpus")).texts))
        if node.inputs_named(MEASURED_ON) and not _unseen(node, context).any():
            raise InputError(
                "all texts of the task that measured_on names are among those that the encoders are trained "
                "on, so that nothing is left to measure; name another task, or leave measured_on out"
            )
        config = AutoencoderConfig.model_validate(node.config)
        config.encoders.by_layer(len(arrays_of(node)))


class PretrainClassifiers(Stage):
    """Trains the encoders of every layer on labelled pairs."""

    name = "pretrain"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.freeze.pair_classifiers import labelled_pairs, pretrain_classifiers

        config = _classifier_config(node.config)
        pairs = labelled_pairs(context.corpus(node.input("corpus")))
        file = device_checkpoint(node, context)
        rows = latents(node, context)
        result = pretrain_classifiers(config, rows, pairs, progress, context.device, file)
        result.save(draft.folder)
        draft.summary = {n: node.run_facts[n] for n in ("pretraining", "task")}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        from permafrost.stages.freeze.layerwise import held_out_pairs
        from permafrost.stages.freeze.pair_classifiers import labelled_pairs

        config = _classifier_config(node.config)
        pairs = labelled_pairs(context.corpus(node.input("corpus")))
        held_out_pairs(pairs.pairs, config.dev_share, config.seed)
        config.encoders.by_layer(len(arrays_of(node)))


def _unseen(node: Node, context: RunContext) -> NDArray[np.bool_]:
    """Which texts that are measured only are none of the pretraining's own."""
    own = set(context.corpus(node.input("corpus")).digests)
    return np.array([d not in own for d in context.corpus(node.input(MEASURED_ON)).digests], bool)


def pretrained_config(config: Mapping[str, Any]) -> AutoencoderConfig | ClassifierConfig:
    """How encoders were trained, from the config of their node."""
    if config.get("kind") == "classifier":
        return _classifier_config(config)
    return AutoencoderConfig.model_validate(config)


def _classifier_config(config: Mapping[str, Any]) -> ClassifierConfig:
    return ClassifierConfig.model_validate({k: v for k, v in config.items() if k != "kind"})
