"""A trained head: the result of a fit, its files, and how to use it."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.history import (
    EpochRecord,
    StepRecord,
    history_table,
    log_csv,
    records_of,
)
from permafrost.stages.fit.models import TaskFacts, build_model
from permafrost.stages.fit.record import damaged_head, no_head, read_record
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.kinds import require_known
from permafrost.stages.metrics.records import HISTORY
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

FORMAT = 4


class LoadedHead(torch.nn.Module):
    """A head with the layers its task adds, on the CPU until moved, without gradients.

    Tokens are packed float32 `[n_tokens, d_in]`; text i is `offsets[i]:offsets[i + 1]`.
    """

    def __init__(
        self, config: FitConfig, d_in: int, facts: TaskFacts, epoch: int, dev: float
    ) -> None:
        super().__init__()
        self.config = config
        """As it was trained, with its limits filled in."""
        self.d_in = d_in
        self.facts = facts
        """What it knows about the corpus it was trained on."""
        self.epoch = epoch
        """The chosen epoch, from 1."""
        self.dev = dev
        """Its metric on dev, with the labels that the fit used (shuffled for the control)."""
        self.model = build_model(config, facts, d_in)
        self.requires_grad_(False)
        self.eval()

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the classes; empty if it was not trained on classes."""
        return self.facts.label_names

    @property
    def pooling(self) -> Pooling:
        """The pooling alone."""
        return self.model.pooling

    @property
    def layer(self) -> str:
        """The stored array it reads."""
        return self.config.layer

    @property
    def n_parameters(self) -> int:
        """Number of parameters, of the pooling and of the layers its task adds."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def choice(self) -> dict[str, JsonValue]:
        """The settings chosen on dev, by dotted name, for tables."""
        return self.config.choice() | {"epoch": self.epoch}

    @torch.no_grad()
    def embed(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text: pooled, and projected if the head was trained on graded pairs."""
        return self.model.vectors(tokens, offsets)

    @torch.no_grad()
    def logits(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n c"]:
        """Class scores per text.

        Raises:
            InputError: the head was not trained to classify single texts.
        """
        if self.facts.task != "classification":
            raise InputError(
                f"this head was trained on a corpus of kind {quoted(self.facts.task)}, so a single text "
                "has no class scores; use its vectors, or a head trained on 'classification'"
            )
        return self.model(tokens, offsets)

    @torch.no_grad()
    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"] | None:
        """Share of each token in its text's vector.

        None for a head without token weights, and for arrays that extraction has pooled, which have no tokens
        to weigh.
        """
        if self.layer.startswith("pooled/"):
            return None
        return self.pooling.token_weights(tokens, offsets)


@dataclass(frozen=True)
class FitResult:
    """The best epoch of a fit, and its history."""

    config: FitConfig
    trained: FitConfig
    """The same with its limits filled in."""
    to_beat: float | None
    """The best dev metric of the candidates before it, if those could end it early."""
    best: EpochRecord
    history: tuple[EpochRecord, ...]
    log: tuple[StepRecord, ...]
    d_in: int
    facts: TaskFacts
    state: Mapping[str, Tensor]
    """Parameters and buffers of the best epoch by name."""

    @classmethod
    def of(
        cls,
        config: FitConfig,
        trained: FitConfig,
        to_beat: float | None,
        trainer: Trainer[Any, Any],
        d_in: int,
        facts: TaskFacts,
    ) -> "FitResult":
        """The result of a trainer that has finished."""
        history, log = records_of(trainer)
        best = next(r for r in history if r.epoch == trainer.best[0].epoch)
        records = tuple(history), tuple(log)
        return cls(config, trained, to_beat, best, *records, d_in, facts, dict(trainer.kept))

    def head(self) -> LoadedHead:
        """The trained head."""
        best = self.best
        head = LoadedHead(self.trained, self.d_in, self.facts, best.epoch, best.dev_metric)
        head.model.load_state_dict(dict(self.state))
        return head

    def save(self, folder: Path) -> None:
        """Write head.safetensors, head.json, history.parquet and log.csv."""
        head = self.head()
        save_file(dict(self.state), folder / "head.safetensors")
        record = {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json"),
            "chosen": head.config.model_dump(mode="json"),
            "epoch": self.best.epoch,
            "dev_metric": self.best.dev_metric,
            "to_beat": self.to_beat,
            "d_in": self.d_in,
            "task": self.facts.task,
            "n_classes": len(self.facts.label_names),
            "label_names": list(self.facts.label_names),
            "label_range": list(self.facts.label_range),
            "n_parameters": head.n_parameters,
            "n_pooling_parameters": head.pooling.n_parameters,
        }
        (folder / "head.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        pq.write_table(history_table(self.history), folder / HISTORY)
        (folder / "log.csv").write_text(log_csv(self.log, self.history), encoding="utf-8")


def load_head(folder: Path) -> LoadedHead:
    """Load a head that `FitResult.save` wrote.

    Raises:
        NotFoundError: the folder holds no head.
        InputError: it is of a kind that is not known here.
        CorruptDataError: its files do not describe one.
    """
    record = read_record(folder)
    with _read_errors(folder):
        head = LoadedHead(
            _chosen(record),
            record["d_in"],
            _facts(record),
            record["epoch"],
            record["dev_metric"],
        )
        head.model.load_state_dict(load_file(folder / "head.safetensors"))
    return head


@contextmanager
def _read_errors(folder: Path) -> Generator[None]:
    """Turn failures to read a head into errors that name its folder."""
    try:
        yield
    except FileNotFoundError as error:
        raise no_head(folder, error) from error
    except (ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ValidationError):
            require_known(error, f"the head in {folder}")
        raise damaged_head(folder, error) from error


def _chosen(record: Mapping[str, Any]) -> FitConfig:
    plain, head = record["chosen"], record["chosen"]["head"]
    if record["format"] < 3:
        # The present 'gin', with batch normalisation, did not exist; AdaPool was scaled per attention head.
        if head.get("conv") == "gin":
            head = head | {"conv": "gin_plain"}
        if head["kind"] == "adapool":
            head = {"scale": "head"} | head
    # Older records do not mention early stopping, which did not exist.
    optim = {"patience": None} | plain["optim"]
    # Before every candidate was a fit of its own, a fit had the field `grid`.
    fields = {name: value for name, value in plain.items() if name != "grid"}
    return FitConfig.model_validate(fields | {"head": head, "optim": optim})


def _facts(record: Mapping[str, Any]) -> TaskFacts:
    if record["format"] == 1:  # single texts with classes only
        return TaskFacts("classification", tuple(record["label_names"]))
    low, high = record["label_range"]
    return TaskFacts(record["task"], tuple(record["label_names"]), (low, high))
