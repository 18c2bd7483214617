"""Encoders of every layer that heads start from (FREEZE!): the `pretrainings` of an experiment."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.method import Upstream
from permafrost.flows.nodes.latents import Latents, latents
from permafrost.flows.nodes.reading import arrays_of
from permafrost.flows.nodes.resuming import device_checkpoint
from permafrost.flows.stage import Stage
from permafrost.stages.freeze.config import AutoencoderConfig, ClassifierConfig
from permafrost.storage.artifacts import Draft
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress


class Pretraining(BaseModel):
    """Encoders of every layer, trained once and used by every head that names them: those of autoencoders of
    generic texts, or of a classification of pairs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    """The task whose texts are used; labels are not."""
    latents: Latents = Latents()
    """What is read of each layer."""
    autoencoder: AutoencoderConfig = AutoencoderConfig(seed=0)
    """Its sizes, and how it is trained."""
    classifier: ClassifierConfig | None = None
    """In its place: encoders that tell the classes of the task's pairs, those of train."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "Pretraining":
        if self.classifier is not None and "autoencoder" in self.model_fields_set:
            raise ValueError("autoencoder and classifier are both given; leave one out")
        return self

    @property
    def reconstructs(self) -> bool:
        """Whether it has errors of reconstruction, which the report draws."""
        return self.classifier is None

    def node(self, name: str, upstream: Upstream) -> Node:
        """Encoders trained on the texts of a task, or on its pairs."""
        arrays = self.latents.arrays(upstream.sizes)
        read = upstream.reading(self.latents.recipe, arrays, self.task)
        stage, config = Pretrain, to_plain(self.autoencoder)
        if self.classifier is not None:
            stage, config = PretrainClassifiers, {"kind": "classifier", **to_plain(self.classifier)}
        return stage.node(
            f"pretrain {name}",
            config,
            (upstream.corpus(self.task), *read.inputs),
            run_facts={**read.run_facts, "pretraining": name, "task": self.task},
            after=read.after,
        )


class Pretrain(Stage):
    """Trains the autoencoders of every layer."""

    name = "pretrain"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.freeze.pretrain import pretrain

        config = AutoencoderConfig.model_validate(node.config)
        with device_checkpoint(node, context) as file:
            result = pretrain(config, latents(node, context), progress, context.device, file)
            result.save(draft.folder)
        draft.summary = {n: node.run_facts[n] for n in ("pretraining", "task")}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        from permafrost.stages.freeze.pretrain import require_texts

        require_texts(len(context.corpus(node.input("corpus")).texts))
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
        with device_checkpoint(node, context) as file:
            rows = latents(node, context)
            result = pretrain_classifiers(config, rows, pairs, progress, context.device, file)
            result.save(draft.folder)
        draft.summary = {n: node.run_facts[n] for n in ("pretraining", "task")}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        from permafrost.stages.freeze.pair_classifiers import labelled_pairs

        labelled_pairs(context.corpus(node.input("corpus")))
        config = _classifier_config(node.config)
        config.encoders.by_layer(len(arrays_of(node)))


def pretrained_config(config: Mapping[str, Any]) -> AutoencoderConfig | ClassifierConfig:
    """How encoders were trained, from the config of their node."""
    if config.get("kind") == "classifier":
        return _classifier_config(config)
    return AutoencoderConfig.model_validate(config)


def _classifier_config(config: Mapping[str, Any]) -> ClassifierConfig:
    return ClassifierConfig.model_validate({k: v for k, v in config.items() if k != "kind"})
