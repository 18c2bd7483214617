"""A graph-text model in training: its batches, the gradients of a batch in parts, and its scores on dev.

Axes: c cases, i items, d width of an embedding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from permafrost.stages.finetune.cases import Cases
from permafrost.stages.finetune.config import FinetuneConfig, Precision
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.fitting import Fitting
from permafrost.stages.finetune.graph_batches import texts_of
from permafrost.stages.finetune.losses.loss import ScoreLoss, VectorLoss
from permafrost.stages.finetune.module import Embedded, GraphTextModule
from permafrost.stages.finetune.optimizer import finetune_optimizer
from permafrost.stages.finetune.parts import gradients_in_parts, joined, parts_of
from permafrost.stages.finetune.search import (
    all_documents,
    ndcg_at_10,
    searched,
    some_documents,
)
from permafrost.stages.finetune.ties import chosen
from permafrost.stages.fit.optim import limits_of
from permafrost.stages.fit.trainer import Plan, Trainee, shuffled_batches
from permafrost.storage.errors import PermafrostError
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged

S = TypeVar("S", np.float64, np.int64)
SCORED_AT_A_TIME = 64
"""Items per batch in evaluation, at most."""


class Aligned(NamedTuple):
    """How far two embeddings of the same item are from each other after an epoch: those of the two branches,
    or what the model compares instead."""

    epoch: int
    distance: float
    """Mean Euclidean distance of the two, both of unit length, over the items of the dev cases: of a
    retrieval the dev queries and their relevant documents."""


@dataclass(frozen=True)
class Batch:
    """Cases of a step, with each item once."""

    cases: Cases
    """Their items as rows of `items`."""
    items: NDArray[np.int64]


class GraphTextTrainee(Trainee[GraphTextModule, Batch]):
    """A graph-text model; the same seed gives the same initial weights on every device.

    Args:
        config: of the fine-tuning.
        data: of the corpus; test is not read.
        module: built for them.
        device: where to compute.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        data: FinetuneData,
        module: GraphTextModule,
        device: torch.device,
    ) -> None:
        self.config, self.data, self.device = config, data, device
        self.model = module.to(device)
        # An optimiser of nothing cannot be made; a model without parameters is only scored.
        if self.model.n_parameters:
            self.optimizer = finetune_optimizer(config.optim, self.model)
        self.reader = data.controlled(config, module.tuned)
        self.aligned: list[Aligned] = []
        self.fitting = Fitting(
            self.model, device, config.optim.at_a_time, "one text with its graph"
        )

    @cached_property
    def train(self) -> Cases:
        """See `trained_cases`; a corpus for which nothing is trained may have none."""
        return trained_cases(self.config, self.data)

    @property
    def plan(self) -> Plan:
        """The config's training plan for the number of train cases."""
        optim = self.config.optim
        n_steps = len(self._order(1))
        limits = limits_of(optim.max_epochs, optim.patience, optim.max_steps, n_steps)
        return Plan(limits.n_epochs, n_steps, limits.patience, max_grad_norm=optim.max_grad_norm)

    @cached_property
    def _dev_documents(self) -> NDArray[np.int64]:
        n = self.config.optim.dev_documents
        if n is None:
            return all_documents(self.data.corpus)
        return some_documents(self.data.corpus, "dev", n, self.config.seed)

    @property
    def _precision(self) -> Precision:
        return self.config.optim.precision

    def _order(self, epoch: int) -> list[NDArray[np.int64]]:
        optim, least = self.config.optim, self.config.loss.least_batch
        return shuffled_batches(len(self.train), optim.batch_size, self.config.seed, epoch, least)

    def batches(self, epoch: int) -> list[Batch]:
        """Cases in an order given by the seed."""
        return [as_batch(self.train.take(picked)) for picked in self._order(epoch)]

    def loss(self, batch: Batch) -> tuple[Tensor, int]:
        """The loss of a batch that is computed whole."""
        return self._total(self._embed(batch.items, self._precision), batch), len(batch.cases)

    def gradients(
        self, batch: Batch, require_finite: Callable[[Sequence[float]], None]
    ) -> tuple[list[float], int]:
        """In parts if the batch does not fit, or is not meant to, at a time. The loss is noted for a case of
        the batch; its gradients are those of the sum, if it is one."""

        def compute(at_a_time: int | None) -> tuple[list[float], int]:
            self.optimizer.zero_grad()
            if at_a_time is None or at_a_time >= len(batch.items):
                return super(GraphTextTrainee, self).gradients(batch, require_finite)

            def loss(embedded: Embedded) -> Tensor:
                value = self._total(embedded, batch)
                require_finite([float(value.detach())])
                return value

            value = gradients_in_parts(
                self.model,
                lambda part: self._embed(batch.items[part], self._precision),
                len(batch.items),
                at_a_time,
                loss,
            )
            return [float(value)], len(batch.cases)

        losses, n_cases = self.fitting.run(len(batch.items), compute)
        return [loss / n_cases if self.config.loss.is_sum else loss for loss in losses], n_cases

    def _embed(
        self, items: NDArray[np.int64], precision: Precision, described: bool = True
    ) -> Embedded:
        batch = self.reader.batch(items, self.device, described)
        is_low = precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_low):
            return self.model(batch)

    def _total(self, embedded: Embedded, batch: Batch) -> Tensor:
        """Equation 6: the task's loss of every branch, weighted, and lambda times the alignment."""
        config, model, cases = self.config, self.config.model, batch.cases
        rows = torch.from_numpy(cases.items.data).to(self.device)
        offsets = torch.from_numpy(cases.items.offsets).to(self.device)
        labels = torch.from_numpy(cases.labels).to(self.device)
        loss, total = config.loss, torch.zeros((), device=self.device)
        branches = [z.float() for z in embedded.branches]
        for branch, (z, weight) in enumerate(zip(branches, model.branch_weights, strict=False)):
            if isinstance(loss, ScoreLoss):
                value = loss.of(self.model.score(z, branch)[rows], offsets, labels)
            else:
                assert isinstance(loss, VectorLoss)
                queries, documents = rows.reshape(-1, 2).unbind(1)
                other = branches[1 - branch] if loss.pairs_across else z
                value = loss.of(z[queries], other[documents], self._relevant(batch))
            total = total + weight * value
        if model.alignment is not None and embedded.described is not None:
            over = model.aligned or (
                "cases" if self.data.corpus.task == "multiple_choice" else "items"
            )
            anchors, keys = branches
            if over == "cases":
                # The right choice of a question; the query of a document; the only item of a case.
                is_choice = self.data.corpus.task == "multiple_choice"
                first = offsets[:-1] + (labels if is_choice else 0)
                anchors, keys = anchors[rows[first]], keys[rows[first]]
            total = total + model.alignment_weight * model.alignment.of(anchors, keys)
        return total

    def _relevant(self, batch: Batch) -> Tensor:
        """Whether some pair of train has the query of one pair of a batch and the document of another."""
        query, document = self._texts_of_pairs(batch.items[batch.cases.items.data])
        n = len(self.data.corpus.texts)
        return torch.from_numpy(np.isin(query[:, None] * n + document, self._pairs)).to(self.device)

    @cached_property
    def _pairs(self) -> NDArray[np.int64]:
        """A number for each pair of a query's and a document's text in train."""
        query, document = self._texts_of_pairs(self.train.items.data)
        return np.unique(query * len(self.data.corpus.texts) + document)

    def _texts_of_pairs(self, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Equal texts are the same one to a search, whatever their ids."""
        queries, documents = texts_of(self.data.corpus, items).reshape(-1, 2).T
        return queries, documents

    @torch.no_grad()
    def embeddings(
        self,
        items: NDArray[np.int64],
        precision: Precision = "float32",
        *,
        described: bool = False,
    ) -> Embedded:
        """Embeddings of items, on the CPU, in the present mode of the model.

        Raises:
            PermafrostError: one is not finite.
        """

        def compute(at_a_time: int | None) -> Embedded:
            size = min(at_a_time or SCORED_AT_A_TIME, SCORED_AT_A_TIME)
            parts: list[Embedded] = []
            for part in parts_of(len(items), size):
                found = self._embed(items[part], precision, described)
                other = found.described
                parts.append(
                    Embedded(found.z.float().cpu(), None if other is None else other.float().cpu())
                )
            return joined(parts)

        found = self.fitting.run(min(len(items), SCORED_AT_A_TIME), compute)
        for z, of in zip(found.branches, ("text and graph", "text and description"), strict=False):
            self._require_finite(z.isfinite().all(dim=1), items, f"the embedding of {of}")
        return found

    @torch.no_grad()
    def scores(self, z: Tensor, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Scores of the embeddings of items by the first branch.

        Raises:
            PermafrostError: one is not finite.
        """
        found = self.model.score(z.to(self.device), 0).double().cpu()
        self._require_finite(found.isfinite(), items, "the score")
        return found.numpy()

    def _require_finite(self, are_finite: Tensor, items: NDArray[np.int64], what: str) -> None:
        """A number that is none would be an answer like any other: every comparison with it is false."""
        broken = items[~are_finite.numpy()]
        if len(broken):
            corpus, item = self.data.corpus, int(broken[0])
            text = corpus.texts[int(texts_of(corpus, broken[:1])[0])]
            raise PermafrostError(
                f"{what} is not finite for {len(broken)} of {len(items)} items, first for item {item}, the "
                f"text {quoted(text)}: the weights of the fine-tuning are broken, or its features are; lower "
                f"optim.lr ({self.config.optim.lr}) and train again, or check the features with 'permafrost "
                "verify'"
            )

    def dev(self) -> tuple[float]:
        """Accuracy or nDCG@10, of graph and text; notes the distance of what the model compares."""
        cases, model = dev_cases(self.config, self.data), self.config.model
        batch = as_batch(cases)
        is_search = self.config.metric == "ndcg_at_10"
        has_two = model.n_branches == 2 and model.compared == "branches"
        embedded = None
        if has_two or not is_search:
            embedded = self.embeddings(batch.items, self._precision, described=has_two)
        if model.compared == "token_and_text":
            self._note_distance(self.tokens_and_texts(batch.items))
        elif has_two and embedded is not None:
            self._note_distance(embedded.branches)
        if is_search:
            found = searched(
                self.data.corpus,
                ("dev",),
                self._dev_documents,
                lambda items: self.embeddings(items, self._precision).z,
            )
            return (ndcg_at_10(found["dev"]),)
        assert embedded is not None
        answers, _ = self.answers(embedded.z, batch)
        return (float(np.mean(answers == cases.labels)),)

    @torch.no_grad()
    def tokens_and_texts(self, items: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The graph tokens of items, and the mean states of their texts alone, on the CPU."""

        def compute(at_a_time: int | None) -> tuple[Tensor, Tensor]:
            size = min(at_a_time or SCORED_AT_A_TIME, SCORED_AT_A_TIME)
            tokens: list[Tensor] = []
            texts: list[Tensor] = []
            for part in parts_of(len(items), size):
                batch = self.reader.batch(items[part], self.device, described=False)
                found = self.model.graph_tokens(batch)
                assert found is not None, "a model that compares graph tokens has some"
                tokens.append(found.float().cpu())
                texts.append(self.reader.mean_states(items[part]).cpu())
            return torch.cat(tokens), torch.cat(texts)

        return self.fitting.run(min(len(items), SCORED_AT_A_TIME), compute)

    def _note_distance(self, pair: Sequence[Tensor]) -> None:
        a, b = (functional.normalize(z, dim=1) for z in pair)
        distance = float((a - b).norm(dim=1).mean())
        self.aligned.append(Aligned(len(self.aligned) + 1, distance))

    def answers(
        self, z: Tensor, batch: Batch
    ) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """The answer to each case of a batch, and for two classes the probability of class 1; `z` has the
        embeddings of its items. The batch has all cases of a split, by whose numbers ties are broken. Raises
        as `scores`."""
        cases = batch.cases
        scores = self.scores(z, batch.items)[cases.items.data]
        if self.data.corpus.task == "classification":
            probabilities = 1 / (1 + np.exp(-scores))
            return (scores > 0).astype(np.int64), probabilities
        of_items = texts_of(self.data.corpus, batch.items)[cases.items.data]
        found = [
            chosen(
                some,
                [str(self.data.corpus.digests[t]) for t in texts.tolist()],
                self.config.seed,
                case,
            )
            for case, (some, texts) in enumerate(
                zip(_split(scores, cases.items), _split(of_items, cases.items), strict=True)
            )
        ]
        return np.array(found), None

    def state(self) -> dict[str, Any]:
        """Distances so far, and how many items fit in memory."""
        return {"aligned": [tuple(a) for a in self.aligned], "at_a_time": self.fitting.at_a_time}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        self.aligned = [Aligned(*a) for a in state["aligned"]]
        self.fitting.at_a_time = state["at_a_time"]

    def broken(self, what: str, part: int, value: float) -> PermafrostError:
        """An error that names the fit and its learning rate."""
        return PermafrostError(
            f"the loss is {value} {what} of the fine-tuning {self.config.model_dump_json()}; lower optim.lr "
            f"({self.config.optim.lr}), or check the features with 'permafrost verify'"
        )


def as_batch(cases: Cases) -> Batch:
    """These cases, each item once however many of them have it."""
    items, rows = np.unique(cases.items.data, return_inverse=True)
    return Batch(Cases(Ragged(rows.astype(np.int64), cases.items.offsets), cases.labels), items)


def trained_cases(config: FinetuneConfig, data: FinetuneData) -> Cases:
    """The train cases: of a retrieval those with a relevant document; under the config's labels."""
    return _labelled(config, _matched(config, data.cases("train")), "train")


def dev_cases(config: FinetuneConfig, data: FinetuneData) -> Cases:
    """The dev cases, of a retrieval those with a relevant document; under the config's labels."""
    return _labelled(config, _matched(config, data.cases("dev")), "dev")


def _matched(config: FinetuneConfig, cases: Cases) -> Cases:
    """Of a retrieval the cases whose document is relevant to their query."""
    return cases.take(np.flatnonzero(cases.labels > 0)) if config.metric == "ndcg_at_10" else cases


def _labelled(config: FinetuneConfig, cases: Cases, split: str) -> Cases:
    if config.labels == "true":
        return cases
    order = np.random.default_rng([config.seed, len(cases), len(split)]).permutation(len(cases))
    if config.metric != "ndcg_at_10":
        dealt = cases.labels[order]
        # Questions may have different numbers of choices.
        is_choice = "multiple_choice" in config.loss.task_kinds
        return Cases(cases.items, dealt % cases.items.lengths if is_choice else dealt)
    # A retrieval has no labels: queries get the documents of other ones.
    pairs = cases.items.data.reshape(-1, 2)
    mixed = np.stack([pairs[:, 0], pairs[order, 1]], axis=1)
    return Cases(Ragged(mixed.ravel(), cases.items.offsets), cases.labels)


def _split(values: NDArray[S], cases: Ragged) -> list[NDArray[S]]:
    return np.split(values, cases.offsets[1:-1])
