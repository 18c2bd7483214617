"""Of which text the attention of every token is kept, and of which blocks."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_LAYERS, MAX_SEED, MAX_TEXTS
from permafrost.stages.corpus.text_sample import TextSample
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

MAX_TOKENS = 512
"""Longest text: a map has the square of it in numbers, and a picture no more than a few hundred lines."""


def _has_words(text: str) -> str:
    if not text.strip():
        raise ValueError(f"{quoted(text)} is blank; give a text with words")
    return text


class AttentionMapConfig(BaseModel):
    """One text, and blocks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=1), AfterValidator(_has_words)] | None = None
    """The text itself; one of the task's, drawn by `seed`, if not given."""
    min_words: int = Field(default=16, ge=1, le=MAX_TEXTS)
    """Shorter texts of the task are not drawn."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed draws a different text."""
    blocks: tuple[Annotated[int, Field(ge=1, le=MAX_LAYERS)], ...] | None = Field(
        default=None, min_length=1, max_length=8
    )
    """Whose map is kept; the first, the one in the middle and the last if not given. Where attention goes is
    measured in all blocks."""
    max_tokens: int = Field(default=64, ge=2, le=MAX_TOKENS)
    """A longer input is cut."""

    @property
    def sample(self) -> TextSample:
        """How a text of the task is drawn."""
        return TextSample(n_texts=1, min_words=self.min_words, seed=self.seed)

    def read_blocks(self, sizes: BackboneSizes) -> tuple[int, ...]:
        """The blocks of a backbone of these sizes, ascending.

        Raises:
            InputError: a block that it does not have.
        """
        n = sizes.n_layers
        chosen = (1, (n + 1) // 2, n) if self.blocks is None else self.blocks
        if max(chosen) > n:
            raise InputError(
                f"blocks has {max(chosen)}, but this {sizes.model_type} backbone has blocks 1 to {n}"
            )
        return tuple(sorted(set(chosen)))


def require_one_pass(recipe: Recipe) -> None:
    """Check that one pass has all the attention there is under a recipe.

    Raises:
        InputError: heads of another prompt are taken away in it.
    """
    if recipe.intervention is not None:
        raise InputError(
            f"the recipe {recipe.name()} replaces the heads of one block by those of another prompt, which "
            "one map does not show; use another recipe"
        )
