"""A head and its backbone as a module of sentence-transformers; the only module that imports the library.

An exported folder of the module form names the class below as its only module. The library imports it only
with `trust_remote_code=True`, although no code of the folder is run:

    SentenceTransformer(folder, trust_remote_code=True)
    SentenceTransformer(modules=[FrozenBackboneHead.load(folder)])
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule

from permafrost.stages.encoder.module_form import BACKBONE, HEAD, RECORD, load_exported
from permafrost.stages.extraction.recipes.inputs import UnreadableTextError
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class FrozenBackboneHead(InputModule):
    """Maps texts to `sentence_embedding`: recipe, backbone, rounding and head as in `Encoder`."""

    # The library writes this name into the folders that it saves.
    __module__ = "permafrost"

    def __init__(self, folder: Path | str) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.encoder = load_exported(folder, device="cpu")
        self.tokenizer = self.encoder.backbone.tokenizer
        # Registered as submodules, so that they move with the model to another device. Linear classifiers are
        # no modules: they have vectors of a method.
        self.backbone = self.encoder.backbone.model
        self.head = self.encoder.vectors.module
        self._dtypes = self._weights()

    def _weights(self) -> dict[str, torch.dtype]:
        return {name: weight.dtype for name, weight in self.named_parameters()}

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> "FrozenBackboneHead":
        """Load from a folder or from the hub; called by the library, whose other arguments are ignored.

        Raises:
            InputError: there is no such folder.
        """
        folder = cls.load_dir_path(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        if folder is None:
            raise InputError(
                f"there is no folder {quoted(model_name_or_path)} with an exported head; give one"
            )
        return cls(folder)

    @property
    def max_seq_length(self) -> int:
        """Maximum tokens per input; fixed by the features the head was trained on."""
        return self.encoder.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: object) -> None:
        raise InputError(
            f"max_seq_length cannot be {quoted(value)}: the head was trained on features of texts cut to "
            f"{self.encoder.max_length} tokens; cut the texts yourself, or train on features of another "
            "max_length"
        )

    def get_embedding_dimension(self) -> int:
        """Width of a vector."""
        return self.encoder.d_out

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Encode texts under the recipe.

        Raises:
            InputError: a text is none, or empty. The message quotes it: the library sorts texts by length,
                so that its index here is not that in the list which it was given.
        """
        for text in inputs:
            if not isinstance(text, str):
                raise InputError(f"{quoted(text)} is no text; give a list of strings")
        texts = [(prompt or "") + text for text in inputs]
        try:
            encoded = [t.encoded(texts) for t in self.encoder.targets]
        except UnreadableTextError as error:
            shown = quoted(texts[error.number])
            raise error.named("a text" if shown in str(error) else f"the text {shown}") from error
        return {"texts": texts, "encoded": encoded}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, `[n_texts, d_out]` float32.

        Raises:
            InputError: the weights are in another precision than what was trained.
        """
        for name, dtype in self._weights().items():
            if dtype != (trained := self._dtypes[name]):
                raise InputError(
                    f"the weight {quoted(name)} of the exported model in {self.folder} was converted from "
                    f"{trained} to {dtype}, and the head was trained on features in {trained}; load the "
                    "model again and leave out half(), bfloat16() and to(dtype)"
                )
        device = next(self.backbone.parameters()).device
        encoder = replace(self.encoder, backbone=replace(self.encoder.backbone, device=device))
        texts = features["texts"]
        prompts = [
            encoder.of_batch(target, texts, encoded)
            for target, encoded in zip(encoder.targets, features["encoded"], strict=True)
        ]
        vectors = encoder.vectors.joined(prompts, lambda i: f"the text {quoted(texts[i])}")
        features["sentence_embedding"] = torch.from_numpy(vectors).to(device)
        return features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Copy the exported files unchanged."""
        if self.folder.resolve() == Path(output_path).resolve():
            return
        for name in (BACKBONE, HEAD):
            shutil.copytree(self.folder / name, Path(output_path) / name, dirs_exist_ok=True)
        shutil.copyfile(self.folder / RECORD, Path(output_path) / RECORD)
