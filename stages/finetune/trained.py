"""A trained graph-text model: the result of a fine-tuning, its files, and how to load it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.module import GraphTextModule, ModelFacts
from permafrost.stages.finetune.trainee import Aligned, GraphTextTrainee
from permafrost.stages.finetune.tuned import Tuned, joined_state, split_state
from permafrost.stages.fit.history import (
    EpochRecord,
    StepRecord,
    history_table,
    log_csv,
    records_of,
)
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.kinds import require_known
from permafrost.stages.metrics.records import ALIGNED, ALIGNMENT, HISTORY
from permafrost.storage.errors import CorruptDataError, NotFoundError

FORMAT = 1
WEIGHTS, RECORD = "model.safetensors", "finetune.json"
BACKBONE = "backbone"
"""Folder of what was trained of the backbone."""


@dataclass(frozen=True)
class FinetuneResult:
    """The best epoch of a fine-tuning, and its history."""

    config: FinetuneConfig
    facts: ModelFacts
    best: EpochRecord
    history: tuple[EpochRecord, ...]
    log: tuple[StepRecord, ...]
    aligned: tuple[Aligned, ...]
    """Empty without a second branch."""
    at_a_time: int | None
    """Items that were computed at a time at the end; None for whole batches."""
    n_parameters: int
    state: Mapping[str, Tensor]
    """Parameters and buffers of the best epoch by name, of the backbone those that were trained."""
    tuned: Tuned | None
    """What was trained of the backbone."""
    relations: tuple[str, ...]
    """Of the graphs' own edges, in the order of the corpus: what the model knows."""
    relation_words: tuple[str, ...]
    """Each of them in words, as the descriptions that it read have it."""

    @classmethod
    def of(
        cls,
        config: FinetuneConfig,
        facts: ModelFacts,
        trainee: GraphTextTrainee,
        trainer: Trainer[GraphTextModule, Any],
    ) -> "FinetuneResult":
        """The result of a trainer that has finished."""
        history, log = records_of(trainer)
        return cls(
            config=config,
            facts=facts,
            best=next(r for r in history if r.epoch == trainer.best[0].epoch),
            history=tuple(history),
            log=tuple(log),
            aligned=tuple(trainee.aligned),
            at_a_time=trainee.fitting.at_a_time,
            n_parameters=trainee.model.n_parameters,
            state=dict(trainer.kept),
            tuned=trainee.model.tuned,
            relations=trainee.data.corpus.relations,
            relation_words=trainee.data.corpus.relation_words,
        )

    def save(self, folder: Path) -> None:
        """Write model.safetensors, finetune.json, history.parquet, log.csv and, with a second branch,
        alignment.parquet; what was trained of the backbone in a folder `backbone`."""
        own, tuned = split_state(self.state)
        save_file(own, folder / WEIGHTS)
        if self.tuned is not None:
            (folder / BACKBONE).mkdir()
            self.tuned.save(folder / BACKBONE, tuned)
        record = {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json"),
            "facts": asdict(self.facts),
            "relations": list(self.relations),
            "relation_words": list(self.relation_words),
            "epoch": self.best.epoch,
            "dev_metric": self.best.dev_metric,
            "at_a_time": self.at_a_time,
            "n_parameters": self.n_parameters,
        }
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        pq.write_table(history_table(self.history), folder / HISTORY)
        (folder / "log.csv").write_text(log_csv(self.log, self.history), encoding="utf-8")
        if self.aligned:
            columns = zip(*self.aligned, strict=True)
            pq.write_table(pa.table([list(c) for c in columns], schema=ALIGNED), folder / ALIGNMENT)


@dataclass(frozen=True)
class Finetuned:
    """A trained model; it needs the backbone that it was trained with."""

    config: FinetuneConfig
    facts: ModelFacts
    epoch: int
    """The chosen epoch, from 1."""
    dev: float
    """Its metric on dev, with the labels that training used."""
    state: Mapping[str, Tensor]
    relations: tuple[str, ...]
    """Of the edges that it knows, without inverses and those of the query node."""
    relation_words: tuple[str, ...] = ()
    """Each of them in words, for descriptions; those of `in_words` if not given, as in an older file."""

    def module(self, backbone: Backbone | None = None) -> GraphTextModule:
        """The model in evaluation mode, without gradients.

        Args:
            backbone: that it was trained with, if it runs one. If it was trained, it is changed to what it
                was at the chosen epoch, so it is the caller's own.
        """
        module = self.config.model.build(self.facts, torch.Generator())
        if backbone is not None:
            module.tuned = self.config.train.attach(backbone, torch.Generator())
        module.load_state_dict(dict(self.state))
        return module.eval().requires_grad_(False)

    @property
    def choice(self) -> dict[str, JsonValue]:
        """The settings, by dotted name, for tables."""
        return self.config.choice() | {"epoch": self.epoch}


def load_finetuned(folder: Path) -> Finetuned:
    """Load what `FinetuneResult.save` wrote.

    Raises:
        NotFoundError: the folder holds no such model.
        InputError: it is of a kind that is not known here.
        CorruptDataError: its files do not describe one.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}")
        config = FinetuneConfig.model_validate(record["config"])
        tuned = config.train.load(folder / BACKBONE)
        return Finetuned(
            config,
            ModelFacts(**record["facts"]),
            record["epoch"],
            record["dev_metric"],
            joined_state(load_file(folder / WEIGHTS), tuned),
            tuple(record["relations"]),
            tuple(record.get("relation_words", ())),
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{folder} holds no graph-text model: {error.filename} is missing"
        ) from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, ValidationError):
            require_known(error, f"the model in {folder}")
        raise CorruptDataError(
            f"the model in {folder} is damaged ({type(error).__name__}: {error}); delete the artifact and "
            "run the fine-tuning again"
        ) from error
