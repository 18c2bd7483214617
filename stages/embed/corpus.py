"""Vectors of a corpus: layers chosen on its dev pairs if asked, whitening fitted on its train texts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.overlap import train_texts
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.choice import choose_layers, require_scores
from permafrost.stages.embed.config import EmbedConfig, layers_of, with_layers
from permafrost.stages.embed.features import Features
from permafrost.stages.embed.finish import finish, whitening_of
from permafrost.stages.embed.layers import combined_layers, embed_ensemble, layer_vectors
from permafrost.stages.embed.whitening import Whitening
from permafrost.stages.extraction.capture import Index
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.progress import Progress

_WHITENING = "whitening.safetensors"


@dataclass(frozen=True)
class CorpusVectors:
    """One vector per text of a corpus, and what was chosen to make them."""

    vectors: Vectors
    """`[n_texts, width]` float32, in the order of the corpus."""
    layers: tuple[Index, ...]
    whitening: Whitening | None = None
    """As fitted on the texts of train; None without one."""

    @property
    def choice(self) -> dict[str, str]:
        """What was chosen, for tables."""
        return {"layers": ",".join(map(str, self.layers))}

    def save(self, folder: Path) -> None:
        """Write vectors.npy, vectors.json and, where there is one, the whitening as whitening.safetensors."""
        np.save(folder / "vectors.npy", self.vectors)
        record = {"layers": list(self.layers), "width": int(self.vectors.shape[1])}
        (folder / "vectors.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        if self.whitening is not None:
            self.whitening.save(folder / _WHITENING)

    @classmethod
    def load(cls, folder: Path) -> "CorpusVectors":
        """Read what `save` wrote.

        Raises:
            CorruptDataError: a file is missing or broken.
        """
        from safetensors import SafetensorError

        try:
            record: dict[str, Any] = json.loads((folder / "vectors.json").read_text("utf-8"))
            vectors, path = np.load(folder / "vectors.npy"), folder / _WHITENING
            whitening = Whitening.load(path) if path.exists() else None
            return cls(vectors, tuple(record["layers"]), whitening)
        except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
            raise CorruptDataError(
                f"{folder} holds no vectors of a corpus ({error}); delete the artifact and run again"
            ) from error


def require_embeddable(config: EmbedConfig, sizes: BackboneSizes, corpus: Corpus) -> None:
    """Check everything about vectors that a corpus and the backbone's sizes tell without features.

    Raises:
        InputError: `auto` or `best` without graded dev pairs of different scores, or whitening without a
            train split or to more directions than its texts or their vectors have.
    """
    if config.is_chosen:
        require_scores(_dev_pairs(corpus).column("label").to_numpy())
    if config.whitening is not None:
        n_train, n_components = len(_whitened_on(corpus)), config.whitening.n_components
        if n_train < 2 or (n_components or 1) > n_train - 1:
            raise InputError(
                f"whitening to {n_components or 'all'} components was asked for, but "
                f"{n_train} training texts have at most {n_train - 1} directions; give more training texts "
                "or a smaller n_components"
            )
        # How wide concatenated layers are is not known before dev has chosen them.
        width = config.method.width(config.of, sizes)
        if config.combine == "average" and (n_components or 1) > width:
            raise InputError(
                f"whitening to {n_components} components was asked for, but the vectors have the width "
                f"{width}; give a smaller n_components"
            )


def embed_corpus(
    config: EmbedConfig, prompt_features: Sequence[Features], corpus: Corpus, progress: Progress
) -> "CorpusVectors":
    """One vector per text of `corpus`, from stored features alone.

    Args:
        config: method, layers, combination, finishing. `layers: auto` and `best` are chosen on the dev pairs,
            whitening is fitted on the texts of train, hard negatives too; test plays no role in either.
        prompt_features: features of the corpus' texts, one per prompt of an ensemble; one for other recipes.
        corpus: whose texts these are.
        progress: told the texts done.

    Raises:
        InputError: `auto` or `best` without graded dev pairs, whitening without a train split; see `embed`.
    """
    if config.is_chosen:
        config = with_layers(config, _chosen(config, prompt_features, corpus, progress))
    train = None if config.whitening is None else _whitened_on(corpus)
    vectors = embed_ensemble(
        (combined_layers(config, m, progress) for m in prompt_features), config.combine
    )
    whitening = whitening_of(config, vectors, prompt_features[0].name, train)
    vectors = finish(config, vectors, prompt_features[0].name, whitening=whitening)
    return CorpusVectors(vectors, layers_of(config, prompt_features[0].sizes), whitening)


def _chosen(
    config: EmbedConfig, prompt_features: Sequence[Features], corpus: Corpus, progress: Progress
) -> tuple[int, ...]:
    dev = _dev_pairs(corpus)
    pairs = np.stack([dev.column(c).to_numpy() for c in ("text", "text_pair")], axis=1)
    by_layer = {
        int(parts[0][0]): embed_ensemble((v for _, v in parts), config.combine)
        for parts in zip(
            *(layer_vectors(config, m, progress) for m in prompt_features), strict=True
        )
    }
    return choose_layers(by_layer, pairs, dev.column("label").to_numpy(), config)


def _dev_pairs(corpus: Corpus) -> pa.Table:
    if corpus.task != "similarity" or "dev" not in corpus.splits:
        raise InputError(
            f"layers 'auto' and 'best' are chosen on graded pairs of a dev split, but this is a "
            f"{corpus.task} corpus with the splits {', '.join(corpus.splits)}; name the layers"
        )
    return corpus.split("dev")


def _whitened_on(corpus: Corpus) -> NDArray[np.int64]:
    if "train" not in corpus.splits:
        raise InputError(
            f"whitening is fitted on the texts of train, but the corpus has the splits "
            f"{', '.join(corpus.splits)}; give a train split, or leave whitening out"
        )
    return train_texts(corpus.examples)
