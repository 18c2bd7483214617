"""The base classes of what of a backbone is trained: configs that make it trainable, in place."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn

from permafrost.stages.extraction.families import HasModel
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.kinds import Category, Kind

TUNED = "tuned."
"""Prefix, in a model's state, of what is trained of its backbone."""
WEIGHTS = f"{TUNED}weights."
"""Prefix of the weights there, which the kind of tuning saves; the rest, such as counts of draws, is the
model's."""


class Tuned(nn.Module, ABC):
    """What is trained of one backbone: its parameters are in that backbone, so a step of the optimiser, or
    loading a state, changes it."""

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        """Args: weights: by name."""
        super().__init__()
        # No name of a parameter may have a dot.
        self.weights = nn.ParameterDict({_in_state(name): w for name, w in weights.items()})

    @abstractmethod
    def drawing(self) -> AbstractContextManager[None]:
        """For the length of a pass through the backbone: what is drawn in it comes from generators of our
        own; nothing is drawn in evaluation mode."""

    @abstractmethod
    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write weights, those of `self.weights` at some time, by the names that this was made with.

        Args:
            folder: there, and empty.
            weights: on the CPU.
        """

    def merge(self) -> None:
        """Put what lies beside the backbone's own weights into them; nothing can be trained after it."""
        return


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


def split_state(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A model's state without the weights of its backbone, and these by name."""
    own = {key: value for key, value in state.items() if not key.startswith(WEIGHTS)}
    tuned = {
        _in_file(key.removeprefix(WEIGHTS)): value
        for key, value in state.items()
        if key.startswith(WEIGHTS)
    }
    return own, tuned


def joined_state(own: Mapping[str, Tensor], tuned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `split_state`."""
    return {**own, **{f"{WEIGHTS}{_in_state(name)}": value for name, value in tuned.items()}}


def _in_state(name: str) -> str:
    return name.replace(".", "/")


def _in_file(name: str) -> str:
    return name.replace("/", ".")


TUNINGS = Category("tuning of the backbone", Tuning, "permafrost.stages.finetune.tunings")
TuningConfig = Annotated[Tuning, TUNINGS.field_or_name()]
"""Any tuning, by its `kind`, or by the name of one alone."""


def frozen_backbone() -> Tuning:
    """Nothing of the backbone is trained: what a method does that says nothing of it."""
    return TUNINGS.validate({"kind": "probe"})
