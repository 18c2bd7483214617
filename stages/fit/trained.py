"""A trained head: what a fit returns, its files, and using it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stages.fit.config import FitConfig
from stages.heads import Classifier, build_head
from storage.errors import CorruptDataError, NotFoundError

FORMAT = 1


class LoadedHead(torch.nn.Module):
    """A head with its classifier, on the CPU until moved, without gradients.

    Tokens are packed float32 `[n_tokens, d_in]`, text i is `offsets[i]:offsets[i + 1]`.
    """

    def __init__(
        self, config: FitConfig, d_in: int, label_names: tuple[str, ...], epoch: int, dev: float
    ) -> None:
        super().__init__()
        self.config = config
        """The chosen candidate."""
        self.d_in = d_in
        self.label_names = label_names
        self.epoch = epoch
        """The chosen epoch, from 1."""
        self.dev = dev
        """Its metric on dev, with the labels that the fit saw."""
        draw = torch.Generator().manual_seed(config.seed)
        self.pooling = build_head(config.head, d_in, draw)
        self.classifier = Classifier(self.pooling.d_out, len(label_names), draw)
        self.requires_grad_(False)

    @property
    def layer(self) -> str:
        """The stored array it reads."""
        return self.config.layer

    @property
    def n_parameters(self) -> int:
        """Trained numbers, pooling and classifier."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def choice(self) -> dict[str, JsonValue]:
        """What was chosen on dev, by dotted name, for tables."""
        return self.config.choice() | {"epoch": self.epoch}

    @torch.no_grad()
    def embed(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return self.pooling(tokens, offsets)

    @torch.no_grad()
    def logits(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n c"]:
        """Class scores per text."""
        return self.classifier(self.pooling(tokens, offsets))

    @torch.no_grad()
    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"] | None:
        """Share of each token in its text's vector; None for a head without weights."""
        return self.pooling.token_weights(tokens, offsets)


@dataclass(frozen=True)
class EpochRecord:
    """One candidate after one epoch."""

    candidate: int
    epoch: int
    train_loss: float
    dev_metric: float


@dataclass(frozen=True)
class FitResult:
    """The best head of a fit and how it was found."""

    config: FitConfig
    candidates: tuple[FitConfig, ...]
    best: EpochRecord
    history: tuple[EpochRecord, ...]
    d_in: int
    label_names: tuple[str, ...]
    state: Mapping[str, Tensor]
    """Parameters of the best epoch by name."""

    def head(self) -> LoadedHead:
        """The trained head."""
        chosen = self.candidates[self.best.candidate]
        head = LoadedHead(
            chosen, self.d_in, self.label_names, self.best.epoch, self.best.dev_metric
        )
        head.load_state_dict(dict(self.state))
        return head

    def save(self, folder: Path) -> None:
        """Write head.safetensors, head.json and history.parquet."""
        head = self.head()
        save_file(dict(self.state), folder / "head.safetensors")
        record = {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json"),
            "candidate": self.best.candidate,
            "chosen": head.config.model_dump(mode="json"),
            "epoch": self.best.epoch,
            "dev_metric": self.best.dev_metric,
            "d_in": self.d_in,
            "n_classes": len(self.label_names),
            "label_names": list(self.label_names),
            "n_parameters": head.n_parameters,
            "n_pooling_parameters": head.pooling.n_parameters,
        }
        (folder / "head.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        table = pa.table(
            {
                "candidate": pa.array([r.candidate for r in self.history], pa.int64()),
                "candidate_json": pa.array(
                    [self.candidates[r.candidate].model_dump_json() for r in self.history],
                    pa.string(),
                ),
                "epoch": pa.array([r.epoch for r in self.history], pa.int64()),
                "train_loss": pa.array([r.train_loss for r in self.history], pa.float64()),
                "dev_metric": pa.array([r.dev_metric for r in self.history], pa.float64()),
            }
        )
        pq.write_table(table, folder / "history.parquet")


def load_head(folder: Path) -> LoadedHead:
    """Read a head that `FitResult.save` wrote.

    Raises:
        NotFoundError: the folder holds no head.
        CorruptDataError: its files do not describe one.
    """
    try:
        record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
        head = LoadedHead(
            FitConfig.model_validate(record["chosen"]),
            record["d_in"],
            tuple(record["label_names"]),
            record["epoch"],
            record["dev_metric"],
        )
        head.load_state_dict(load_file(folder / "head.safetensors"))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{folder} holds no trained head: {error.filename} is missing"
        ) from error
    except (ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CorruptDataError(
            f"the head in {folder} is damaged ({type(error).__name__}: {error}); delete the artifact and "
            "run the fit again"
        ) from error
    return head
