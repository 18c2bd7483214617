"""The base classes of what of a backbone is trained: configs that make it trainable, in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.kinds import Category, Kind
from permafrost.stages.late_names import late_names
from permafrost.storage.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from permafrost.stages.extraction.families import HasModel
    from permafrost.stages.finetune.tuned import Tuned as Tuned

__getattr__ = late_names(__name__)


class Tuning(Kind, ABC):
    """The field `train` of a method: what of the backbone is trained."""

    @property
    @abstractmethod
    def changes_states(self) -> bool:
        """Whether texts get other states than those stored, so that each pass has to be computed."""

    @property
    def usual_lr(self) -> float:
        """Learning rate of the backbone's weights in the fine-tuning of a head, if none is given."""
        return 2e-4

    @property
    def n_above_cache(self) -> int | None:
        """So many of the last blocks run, from stored states; None: the whole backbone runs."""
        return None

    def require(self, sizes: BackboneSizes) -> None:
        """Raises: InputError: a backbone of these sizes cannot be trained so."""
        return

    def require_precision(self, dtype: str) -> None:
        """Raises: InputError: a backbone with weights of this dtype cannot be trained so."""
        return

    @abstractmethod
    def attach(self, backbone: HasModel, draw: torch.Generator) -> Tuned | None:
        """Make a backbone trainable, in place; None where nothing of it is trained.

        Args:
            backbone: the caller's own, which nothing else reads.
            draw: draws the weights (on the CPU), and the seed of what is drawn in training.
        """

    @abstractmethod
    def load(self, folder: Path) -> Mapping[str, Tensor]:
        """The weights that `Tuned.save` wrote, by name.

        Raises:
            FileNotFoundError: there are none.
            SafetensorError: they are damaged.
        """


class OwnWeightsTuning(Tuning):
    """Weights of the backbone itself are trained, in place."""

    @property
    def changes_states(self) -> bool:
        """Of every text."""
        return True

    @property
    def usual_lr(self) -> float:
        """GLOT's of full fine-tuning (tables 5 and 9)."""
        return 2e-5

    def require_precision(self, dtype: str) -> None:
        """Raises: InputError: it is not float32, so that a step is mostly less than the weights' rounding."""
        if dtype != "float32":
            raise InputError(
                f"train: {self.kind} steps the backbone's own weights, and backbone.dtype is {dtype}, in "
                "which most steps round to nothing; set backbone.dtype to float32 and optim.precision to "
                "bfloat16, which computes in bfloat16, or train: lora, whose adapters are float32"
            )

    def load(self, folder: Path) -> Mapping[str, Tensor]:
        """By the names of the backbone's parameters."""
        from safetensors.torch import load_file

        from permafrost.stages.finetune.own_weights import WEIGHTS

        return load_file(folder / WEIGHTS)


def require_one_half(precision: str, dtype: str) -> None:
    """Of a backbone that runs in training.

    Args:
        precision: of matrix products (autocast).
        dtype: of the backbone's weights.

    Raises:
        InputError: they are different half precisions.
    """
    if "float32" not in (precision, dtype) and precision != dtype:
        raise InputError(
            f"optim.precision is {precision} and backbone.dtype is {dtype}, two half precisions, between "
            f"which torch does not compute; set backbone.dtype to float32 or {precision}, or optim.precision "
            "to float32"
        )


TUNINGS = Category("tuning of the backbone", Tuning, "permafrost.stages.finetune.tunings")
TuningConfig = Annotated[Tuning, TUNINGS.field_or_name()]
"""Any tuning, by its `kind`, or by the name of one alone."""


def frozen_backbone() -> Tuning:
    """Nothing of the backbone is trained: what a method does that says nothing of it."""
    return TUNINGS.validate({"kind": "probe"})
