"""Encoders of every layer that heads start from (FREEZE!): the `pretrainings` of an experiment."""

from pydantic import BaseModel, ConfigDict, model_validator

from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import Upstream
from permafrost.flows.nodes.latents import Latents
from permafrost.flows.nodes.pretraining import MEASURED_ON, Pretrain, PretrainClassifiers
from permafrost.stages.freeze.config import AutoencoderConfig, ClassifierConfig
from permafrost.storage.keys import to_plain
from permafrost.storage.quoting import quoted


class Pretraining(BaseModel):
    """Encoders of every layer, trained once and used by every head that names them: those of autoencoders of
    generic texts, or of a classification of pairs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    """The task whose texts are used; labels are not."""
    measured_on: str | None = None
    """Another task on whose texts, but for those that are trained on, the error of reconstruction is measured
    after every epoch: whether the encoders are of a domain. The encoders are the same with it, and are
    trained anew if it is changed, as are the heads that start from them."""
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
        if self.classifier is not None and self.measured_on is not None:
            raise ValueError(
                f"measured_on is {quoted(self.measured_on)}, but a classifier reconstructs nothing; leave it "
                "out"
            )
        if self.measured_on == self.task:
            raise ValueError(
                f"measured_on is {quoted(self.task)}, the task that is trained on, whose held-out texts are "
                "measured anyway; name another one, or leave it out"
            )
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task whose texts are read."""
        return (self.task,) if self.measured_on is None else (self.task, self.measured_on)

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
        inputs, after = (upstream.corpus(self.task), *read.inputs), read.after
        if self.measured_on is not None:
            other = upstream.corpus(self.measured_on).model_copy(update={"name": MEASURED_ON})
            inputs = (*inputs, other)
            after += upstream.reading(self.latents.recipe, arrays, self.measured_on).after
        return stage.node(
            f"pretrain {name}",
            config,
            inputs,
            run_facts={
                **read.run_facts,
                "pretraining": name,
                "task": self.task,
                "recipe": self.latents.recipe,
            },
            after=after,
        )
