"""What is trained of one backbone, as a module, and its part in the state of a model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from torch import Tensor, nn

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
