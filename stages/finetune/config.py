"""The config of a fine-tuning: a graph-text model, its loss, and its training."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from permafrost.stages.bounds import MAX_SEED, MAX_STEPS, MAX_TEXTS
from permafrost.stages.finetune.losses.loss import GraphTextLossConfig, ScoreLoss, VectorLoss
from permafrost.stages.finetune.model import GraphTextModelConfig
from permafrost.stages.finetune.token_place import ReadAt
from permafrost.stages.finetune.tuning import TuningConfig, frozen_backbone
from permafrost.stages.fit.grid import flat

Precision = Literal["float32", "bfloat16"]
"""Of matrix products, where weights are in float32."""


class FinetuneOptim(BaseModel):
    """How a model is trained with the backbone in the loop; the defaults train small data until dev stops
    improving.

    We differ from GT2VEC (table 8: 1e-5 to 1e-4 for 5 epochs, or 15), which is meant for thousands of cases:
    on a few hundred, five epochs end before the graphs are heard. Its setting for WebNLG is `lr: 1.0e-4,
    max_epochs: 5`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["radam", "adamw"] = "radam"
    """`radam` with decoupled decay; the paper prints "RAAdam"."""
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Constant."""
    weight_decay: float = Field(default=1e-2, ge=0, allow_inf_nan=False)
    """Of the optimiser."""
    decayed: Literal["all", "matrices"] = "all"
    """`matrices` leaves out biases and norms, as QA-GNN's code does."""
    batch_size: int = Field(default=32, ge=1, le=MAX_STEPS)
    """Cases per step: questions, pairs of a graph and a text, or queries with a document."""
    max_epochs: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Maximum passes over train; which one is kept is chosen on dev. None: as many as begin within
    `max_steps`, but at least two."""
    max_steps: int = Field(default=3000, ge=1, le=MAX_STEPS)
    """Steps from which the number of epochs is derived if `max_epochs` is not given."""
    patience: Annotated[int, Field(ge=1, le=MAX_STEPS)] | Literal["auto"] | None = "auto"
    """Training stops after this many epochs in a row without improvement on dev; None for never. `auto`: as
    many as make up a tenth of `max_steps`, but at least five."""
    dev_documents: int | None = Field(default=None, ge=1, le=MAX_TEXTS)
    """Documents that dev queries search after every epoch: those judged for them, and others, drawn by the
    seed, that make up this number. None: all, as in every score of a trained model."""
    max_grad_norm: float | None = Field(default=1.0, gt=0, allow_inf_nan=False)
    """A larger gradient norm is clipped to this; None for no clipping."""
    at_a_time: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Items that are computed at a time, with the gradients of the whole batch: the others wait as embeddings
    only, so in-batch losses see all of them. Not so with `norm: batch` in the graph encoder, whose statistics
    are of a part, and with dropout, which draws otherwise for parts than for the whole. None: the whole
    batch, until one does not fit in memory."""
    precision: Precision = "float32"
    """Of matrix products in training and its evaluations on dev (autocast), where the backbone itself is in
    float32. Scores and embeddings of the trained model are computed in float32. `bfloat16` is slower than
    `float32` on processors that have no instructions for it, by more than ten times without AVX-512."""
    activations: Literal["kept", "recomputed"] = "kept"
    """`recomputed`: those of the backbone's blocks are computed again on the way back (gradient
    checkpointing)."""


class FinetuneConfig(BaseModel):
    """One model on one corpus with graphs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: GraphTextModelConfig
    loss: GraphTextLossConfig
    read: ReadAt = "last"
    """Where a text's vector is read: at its last token, its recipe's readout, or the mean over its span."""
    train: TuningConfig = Field(default_factory=frozen_backbone)
    """What of the backbone is trained."""
    optim: FinetuneOptim = FinetuneOptim()
    seed: int = Field(ge=0, le=MAX_SEED)
    """Seeds the initial weights, what is drawn in training, the order of the batches, and the controls."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` is a control: the labels of train and dev are permuted, test is untouched. Of searches the
    relevant documents are; the epoch is chosen by dev's true judgements, which favours the control."""
    graphs: Literal["true", "shuffled"] = "true"
    """`shuffled` is a control: every item has the graph of another one, which does not equal its own, in test
    too."""
    node_features: Literal["stored", "random"] = "stored"
    """`random` is a control: each node label has a vector of normal numbers."""

    @model_validator(mode="after")
    def _controls_are_of_what_is_read(self) -> "FinetuneConfig":
        controls = {
            "graphs": self.graphs == "shuffled",
            "node_features": self.node_features == "random",
        }
        if not self.model.reads_graphs and (names := [name for name in controls if controls[name]]):
            values = " and ".join(f"{name} is {getattr(self, name)}" for name in names)
            raise ValueError(
                f"{values}, but the model, of kind {self.model.kind}, reads no graphs, so that this would "
                f"change nothing; leave {' and '.join(names)} out"
            )
        return self

    @model_validator(mode="after")
    def _descriptions_are_of_the_own_graph(self) -> "FinetuneConfig":
        if self.graphs == "shuffled" and self.model.reads_descriptions:
            raise ValueError(
                "graphs is shuffled, but the model reads descriptions, which tell of the true graphs; set "
                "description: none"
            )
        return self

    @model_validator(mode="after")
    def _what_is_trained_is_read(self) -> "FinetuneConfig":
        if self.train.changes_states and not self.model.reads_backbone:
            raise ValueError(
                f"train is {self.train.kind}, but a model of kind {self.model.kind} does not read what the "
                "backbone makes of texts; set train: probe"
            )
        return self

    @model_validator(mode="after")
    def _the_whole_backbone_runs(self) -> "FinetuneConfig":
        if self.train.n_above_cache is not None:
            raise ValueError(
                f"train is {self.train.kind} with below: cached, which models of texts with graphs do "
                "not read; set below: live"
            )
        return self

    @model_validator(mode="after")
    def _the_token_is_read(self) -> "FinetuneConfig":
        if self.model.token_place == "last" and self.read != "last":
            raise ValueError(
                f"the graph token stands last, where no token of the text sees it, and read is {self.read}; "
                "set read: last, or graph_token: first"
            )
        return self

    @model_validator(mode="after")
    def _pairs_across_are_of_two_branches(self) -> "FinetuneConfig":
        is_across = isinstance(self.loss, VectorLoss) and self.loss.pairs_across
        if is_across and self.model.n_branches == 1:
            raise ValueError(
                f"loss {self.loss.kind} pairs queries and documents across branches, but the model, of kind "
                f"{self.model.kind}, has one branch; set branches: within, or take gt2vec with description: "
                "trained"
            )
        return self

    @model_validator(mode="after")
    def _both_branches_count(self) -> "FinetuneConfig":
        model = self.model
        if model.n_branches == 1:
            return self
        of_graph, of_description = model.branch_weights
        if of_graph == 0 and model.n_scorers > 1 and isinstance(self.loss, ScoreLoss):
            raise ValueError(
                "graph_weight is 0 and branch_scorers is own, so that the scorer of graph and text, which is "
                "evaluated, would never be trained; set branch_scorers: shared, or give graph_weight a value"
            )
        is_across = isinstance(self.loss, VectorLoss) and self.loss.pairs_across
        is_aligned = model.alignment is not None and model.alignment_weight > 0
        if is_across or is_aligned:
            return self
        alone = "there is no alignment" if model.alignment is None else "lam is 0"
        if of_graph == 0:
            raise ValueError(
                f"graph_weight is 0 and {alone}, so that the graph token, which is evaluated, would never be "
                "trained; give graph_weight a value, or align the branches"
            )
        if of_description == 0:
            raise ValueError(
                f"description_weight is 0 and {alone}, so that descriptions would change nothing; set "
                "description: none, give description_weight a value, or align the branches"
            )
        return self

    @property
    def reads_token_states(self) -> bool:
        """Whether the graph token is computed alone, from what is stored of every token of the texts."""
        return self.model.token_place == "last" and not self.train.changes_states

    @property
    def runs_backbone(self) -> bool:
        """Whether texts pass through the backbone: with a graph token, or as it is trained."""
        return self.model.token_place is not None or self.train.changes_states

    @property
    def trains_nothing(self) -> bool:
        """Whether the loss reads the backbone's own vectors, as in a retrieval zero-shot."""
        is_trained = isinstance(self.loss, ScoreLoss) or self.maps_embeddings
        return self.model.embeds_as_stored and not is_trained and not self.train.changes_states

    @property
    def maps_embeddings(self) -> bool:
        """Whether a linear map of the embeddings is trained."""
        return isinstance(self.loss, VectorLoss) and self.loss.maps_embeddings

    @property
    def metric(self) -> Literal["accuracy", "ndcg_at_10"]:
        """nDCG@10 for retrieval, else accuracy."""
        return "ndcg_at_10" if "unlabelled" in self.loss.task_kinds else "accuracy"

    def choice(self) -> dict[str, JsonValue]:
        """Settings of model, loss and training by dotted name, for tables."""
        named = {"model"} if self.trains_nothing else {"model", "loss", "optim", "train"}
        plain = self.model_dump(mode="json", include=named)
        return dict(flat(plain))


class FinetuneScoreConfig(BaseModel):
    """How a trained model is scored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_graphs: int = Field(default=6, ge=0, le=MAX_TEXTS)
    """Maximum number of test cases whose graphs are kept with the attention in them, spread evenly."""
    graphs_of: tuple[str, ...] = ()
    """Words of test cases whose graphs are kept instead."""
