"""A fitted linear classifier, what it sees of an example, its files, and using it.

Axes: n examples of s texts, d width of a vector, f width of what is seen, k decision values (1 for two
classes, else one per class).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float64, Int64
from pydantic import ValidationError

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.embed.config import EmbedConfig
from permafrost.stages.kinds import require_known
from permafrost.stages.linear.config import Classifier, PairFeatures
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.quoting import quoted

FORMAT = 1
_ROWS_AT_A_TIME = 4096
"""Float64 copies of as many examples are made at a time."""
_ARRAYS = ("classes", "coef", "intercept", "mean", "scale")


@dataclass(frozen=True)
class LinearModel:
    """Classes from vectors."""

    task: TaskKind
    label_names: tuple[str, ...]
    vectors: EmbedConfig | None
    """How they are made; None for those of a head, which is beside the classifier."""
    classifier: Classifier
    c: float
    pair_features: PairFeatures
    classes: Int64[np.ndarray, " n_classes"]
    """Those that train has, ascending: indices into `label_names`."""
    coef: Float64[np.ndarray, "k f"]
    intercept: Float64[np.ndarray, " k"]
    mean: Float64[np.ndarray, " f"]
    """Of train, as `scale`."""
    scale: Float64[np.ndarray, " f"]
    """Standard deviation, 1 where a column is constant up to the rounding of float16."""

    @property
    def n_parameters(self) -> int:
        """Fitted weights and intercepts."""
        return int(self.coef.size + self.intercept.size)

    def decide(self, *sides: Float[np.ndarray, "n d"]) -> Float64[np.ndarray, "n k"]:
        """Decision values: of two classes one, above 0 for the second; of more, the highest wins.

        Raises:
            InputError: two vectors for a classifier of single texts or the reverse, or another width.
        """
        n_sides = 1 if self.task == "classification" else 2
        if len(sides) != n_sides:
            raise InputError(
                f"{len(sides)} arrays of vectors were given, but a classifier for a task of kind "
                f"{quoted(self.task)} takes {n_sides}"
            )
        values = list[Float64[np.ndarray, "_ k"]]()
        for start in range(0, max(len(sides[0]), 1), _ROWS_AT_A_TIME):
            rows = inputs([s[start : start + _ROWS_AT_A_TIME] for s in sides], self.pair_features)
            if rows.shape[1] != self.coef.shape[1]:
                raise InputError(
                    f"the vectors are {sides[0].shape[1]} wide, which makes {rows.shape[1]} columns, but the "
                    f"classifier was fitted on {self.coef.shape[1]}; make them as they were made for it: "
                    f"{self._how()}"
                )
            values.append((rows - self.mean) / self.scale @ self.coef.T + self.intercept)
        return np.concatenate(values)

    def _how(self) -> str:
        return "with its head" if self.vectors is None else self.vectors.model_dump_json()

    def predict(self, *sides: Float[np.ndarray, "n d"]) -> Int64[np.ndarray, " n"]:
        """Class indices.

        Args:
            sides: one vector per text; of pairs, those of the first and those of the second texts.

        Raises:
            InputError: see `decide`.
        """
        values = self.decide(*sides)
        best = values[:, 0] > 0 if values.shape[1] == 1 else values.argmax(axis=1)
        return self.classes[best.astype(np.int64)]

    def probabilities(self, *sides: Float[np.ndarray, "n d"]) -> Float64[np.ndarray, "n c"] | None:
        """Probability of each of `label_names`, 0 of those that train does not have; None for a support
        vector machine, which has none.

        Raises:
            InputError: see `decide`.
        """
        from scipy.special import expit, softmax

        if self.classifier != "logistic":
            return None
        values = self.decide(*sides)
        if values.shape[1] == 1:
            known = np.hstack([expit(-values), expit(values)])
        else:
            known = softmax(values, axis=1)
        every = np.zeros((len(values), len(self.label_names)))
        every[:, self.classes] = known
        return every

    def save(self, folder: Path) -> None:
        """Write linear.safetensors and linear.json."""
        from safetensors.numpy import save_file

        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        save_file(arrays, folder / "linear.safetensors")
        record = {
            "format": FORMAT,
            "task": self.task,
            "label_names": list(self.label_names),
            "vectors": self.vectors and self.vectors.model_dump(mode="json"),
            "classifier": self.classifier,
            "c": self.c,
            "pair_features": self.pair_features,
            "n_parameters": self.n_parameters,
        }
        (folder / "linear.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def load_linear(folder: Path) -> LinearModel:
    """Read a classifier that `LinearModel.save` wrote.

    Raises:
        NotFoundError: the folder holds none.
        InputError: its vectors are of a kind that is not known here, as of a plug-in that was not named.
        CorruptDataError: its files do not describe one.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        record = json.loads((folder / "linear.json").read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}")
        arrays = load_file(folder / "linear.safetensors")
        return LinearModel(
            task=record["task"],
            label_names=tuple(record["label_names"]),
            vectors=record["vectors"] and EmbedConfig.model_validate(record["vectors"]),
            classifier=record["classifier"],
            c=record["c"],
            pair_features=record["pair_features"],
            **{name: arrays[name] for name in _ARRAYS},
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{folder} holds no linear classifier: {error.filename} is missing"
        ) from error
    except (ValueError, TypeError, KeyError, SafetensorError) as error:
        if isinstance(error, ValidationError):
            require_known(error, f"the linear classifier in {folder}")
        raise CorruptDataError(
            f"the linear classifier in {folder} is damaged ({type(error).__name__}: {error}); delete the "
            "artifact and run again"
        ) from error


def pair_inputs(
    first: Float[np.ndarray, "n d"], second: Float[np.ndarray, "n d"], features: PairFeatures
) -> Float[np.ndarray, "n f"]:
    """Two vectors u and v as one row: [u, v, |u - v|, u * v], or [u, v]."""
    if features == "concat":
        return np.hstack([first, second])
    return np.hstack([first, second, np.abs(first - second), first * second])


def inputs(
    sides: Sequence[Float[np.ndarray, "n d"]], features: PairFeatures
) -> Float64[np.ndarray, "n f"]:
    """Rows of a classifier, in float64, for examples of one or of two vectors."""
    wide = [np.asarray(side, np.float64) for side in sides]
    return wide[0] if len(wide) == 1 else pair_inputs(wide[0], wide[1], features)
