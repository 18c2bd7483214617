"""An encoder that follows mteb's protocol and gets its vectors from elsewhere."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import datasets
from mteb.abstasks import AbsTaskSummarization
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType
from tqdm.auto import tqdm

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.encoder.mteb_name import mteb_name
from permafrost.stages.mteb_evaluation.hub import ROLE_OF_PROMPT
from permafrost.stages.mteb_evaluation.task import Role
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

VectorsOf = Callable[[Sequence[str], Role], Vectors]
"""Maps texts in one role to one vector each, in order, `[n, d]` float32."""


class PermafrostEncoder(AbsEncoder):
    """mteb's view of a method; vectors are compared by cosine.

    mteb stores results by name and revision, so the revision is the digest of the whole identity.
    """

    def __init__(self, vectors: VectorsOf, method: str, identity: str) -> None:
        """
        Args:
            vectors: how texts become vectors.
            method: display name of the method.
            identity: digest of everything that determines the vectors.
        """
        self.vectors = vectors
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": mteb_name(method),
                "revision": identity,
                "similarity_fn_name": ScoringFunction.COSINE,
            }
        )

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Vectors:
        """One vector per text of all batches, in order, `[n, d]` float32.

        Raises:
            InputError: vectors of another kind are asked for, by which mteb would name the scores; other
                arguments are ignored, as they change no vector.
        """
        for argument, plain in (("precision", "float32"), ("truncate_dim", None)):
            if (given := kwargs.get(argument)) not in (None, plain):
                raise InputError(
                    f"encode_kwargs has {argument} {quoted(given)}, and vectors here are whole and float32; "
                    "leave it out, or evaluate a folder of the plain form with sentence-transformers"
                )
        texts = [text for batch in inputs for text in batch["text"]]
        return self.vectors(texts, ROLE_OF_PROMPT[prompt_type])


def silence_bars() -> None:
    """Switch off the progress bars of `datasets`, and the one of mteb that no argument controls."""
    datasets.disable_progress_bars()
    summaries: Any = sys.modules[AbsTaskSummarization.evaluator.__module__]
    summaries.tqdm = partial(tqdm, disable=True)
