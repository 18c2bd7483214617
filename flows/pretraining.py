"""Encoders of every layer that heads start from (FREEZE!): the `pretrainings` of an experiment."""

from pydantic import BaseModel, ConfigDict, model_validator

from permafrost.flows.graph import Node
from permafrost.flows.methods.method import Upstream
from permafrost.flows.nodes.latents import Latents
from permafrost.flows.nodes.pretraining import Pretrain, PretrainClassifiers
from permafrost.stages.freeze.config import AutoencoderConfig, ClassifierConfig
from permafrost.storage.keys import to_plain


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
