"""Embeddings of a list of texts: extract missing features, then pool the cached ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from permafrost.stages.corpus.columns import Similarity
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.sources.files import FilesCorpus
from permafrost.stages.corpus.table_files import column_names
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations import AGGREGATIONS
from permafrost.stages.embed.choice import choose_layers, require_scores
from permafrost.stages.embed.config import EmbedConfig, layers_of, required_arrays, with_layers
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.embed.finish import finish, of_unit_length
from permafrost.stages.embed.layers import combined_layers, embed_ensemble, embed_layers
from permafrost.stages.embed.write import require_place, write_embeddings
from permafrost.stages.encoder.load import find_fitted
from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.extraction.extract import ExtractReport, extract
from permafrost.stages.extraction.recipes.inputs import numbered_by_first
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.stages.kinds import NAME_IT
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest, to_plain
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted
from permafrost.storage.texts import Texts, each_once, numbered

DEV_COLUMNS = Similarity()
"""Columns of a file of development pairs, by any of their usual names."""
_DEV_COLUMNS_BEFORE = Similarity(text="text_a", text_pair="text_b", label="score")
"""The only ones that were read once; a file that has them may have others too."""


@dataclass(frozen=True)
class ByMethod:
    """A training-free method on a backbone."""

    extract: ExtractConfig
    """Its capture is ignored, as the method determines what is read."""
    config: EmbedConfig
    dev: str | None
    """File of graded pairs on which layers are chosen, for `layers: auto` and `best`."""

    def make(self, texts: Texts, context: "ExtractContext") -> "Made":
        """Vectors of texts, and what they were computed from.

        Raises:
            InputError: as `embed_texts`.
        """
        return _each_once(self._of_unique, texts, context)

    def _of_unique(self, unique: "Unique", context: "ExtractContext") -> "Made":
        targets = [
            resolve_target(self.extract.model_copy(update={"recipe": member}))
            for member in self.extract.recipe.members()
        ]
        first = targets[0]
        # The prompts of an ensemble share the backbone, which is loaded at most once.
        load = cache(
            partial(
                load_backbone, first.files, first.identity.compute_dtype, context.runtime.device
            )
        )
        work = _Extractions(targets, context, load)
        config, dev_tokens = self.config, 0
        # Reports a layer that does not exist before anything runs.
        layers = layers_of(config, first.sizes)
        if config.is_chosen:
            config, dev_tokens = _choose(config, self.dev, work)
            layers = layers_of(config, first.sizes)
        elif self.dev is not None:
            raise InputError(
                f"--dev {self.dev} is for --layers auto and best only, but --layers is {config.layers}; "
                "leave one out"
            )
        prompt_features, reports = work.run(config, unique)
        vectors = embed_ensemble(
            (combined_layers(config, f, context.progress("embed")) for f in prompt_features),
            config.combine,
        )
        identities = [to_plain(t.identity) for t in targets]
        facts = {
            "method": config.method.kind,
            "config": config.model_dump(mode="json"),
            "layers": list(layers),
            "layers_chosen_on": self.dev,
            "recipe": to_plain(self.extract.recipe),
            "arrays": list(required_arrays(config, first.sizes)),
            **({"store": identities[0]} if len(targets) == 1 else {"stores": identities}),
        }
        n_tokens = dev_tokens + sum(r.n_tokens for r in reports)
        return Made(finish(config, vectors, prompt_features[0].name), reports, facts, n_tokens)


@dataclass(frozen=True)
class ByHead:
    """A trained head, on the features it was trained on."""

    artifact: str
    backbone: str | None
    """Where the backbone is now; None if it has not moved."""

    def make(self, texts: Texts, context: "ExtractContext") -> "Made":
        """Vectors of texts, and what they were computed from; raises as `find_fitted`."""
        return _each_once(self._of_unique, texts, context)

    def _of_unique(self, unique: "Unique", context: "ExtractContext") -> "Made":
        fitted = find_fitted(context.home, self.artifact, self.backbone)
        first, *_ = targets = fitted.targets
        # The prompts of an ensemble share the backbone, which is loaded at most once.
        load = cache(
            partial(
                load_backbone, first.files, first.identity.compute_dtype, context.runtime.device
            )
        )
        reports = [extract_unique(target, unique, context, load) for target in targets]
        prompt_features = [StoredFeatures(r.store, first.sizes, unique.digests) for r in reports]
        made = [fitted.vectors.of(f, context.progress("embed")) for f in prompt_features]
        identities = [to_plain(target.identity) for target in targets]
        facts = {
            **({"store": identities[0]} if len(targets) == 1 else {"stores": identities}),
            "arrays": list(first.arrays),
            "head": self.artifact,
        }
        vectors = fitted.vectors.joined(made, prompt_features[0].name)
        return Made(vectors, reports, facts, sum(r.n_tokens for r in reports))


@dataclass(frozen=True)
class ExtractContext:
    """Where and how features are extracted."""

    home: Path
    runtime: ExtractRuntime
    progress: Callable[[str], Progress]


@runtime_checkable
class How(Protocol):
    """A way to make vectors of texts."""

    def make(self, texts: Texts, context: ExtractContext) -> "Made":
        """One vector per text; raises as `embed_texts`."""
        ...


@dataclass(frozen=True)
class UnitLength:
    """Vectors of another way, each divided by its length."""

    how: How

    def make(self, texts: Texts, context: ExtractContext) -> "Made":
        """Vectors of texts, and what they were computed from.

        Raises:
            InputError: as `embed_texts`, and a vector of length 0.
        """
        made = self.how.make(texts, context)
        vectors = of_unit_length(made.vectors, lambda i: f"text {i} ({quoted(texts[i])})")
        return replace(made, vectors=vectors, facts=made.facts | {"normalise": "l2"})


def with_length(how: How, normalise: str) -> How:
    """A head's vectors as the command line wants them.

    Raises:
        InputError: `normalise` is another word than `none` and `l2`.
    """
    if normalise not in ("none", "l2"):
        raise InputError(f"--normalise is {quoted(normalise)}; write none or l2")
    return UnitLength(how) if normalise == "l2" else how


def embed_config(**fields: str) -> EmbedConfig:
    """The method described by command-line flags.

    Raises:
        InputError: the method is unknown, or fields do not fit together.
    """
    if fields["method"] not in (known := AGGREGATIONS.kinds()):
        raise InputError(
            f"--method {quoted(fields['method'])} is unknown; there are {', '.join(known)}; if it is "
            f"of a plug-in, name its file: {NAME_IT}"
        )
    try:
        return EmbedConfig.model_validate(fields)
    except ValidationError as error:
        reasons = [
            f"{'/'.join(f'--{part}' for part in e['loc']) or '--of'}: "
            f"{e['msg'].removeprefix('Value error, ')} (given: {quoted(e['input'])})"
            for e in error.errors()
        ]
        raise InputError("; ".join(reasons)) from error


def embed_texts(
    how: How,
    texts: Sequence[str],
    output: Path,
    context: ExtractContext,
    ids: pa.ChunkedArray | None = None,
) -> dict[str, Any]:
    """Write the embeddings of `texts`, with the id of each if given, to `output` and return a summary.

    Equal texts are computed once and written as often as they occur.

    Raises:
        InputError: a layer or head is unknown, `auto` has no development pairs, vectors are not finite, or
            the output cannot be written.
    """
    require_place(output)
    texts = Texts.of(texts)
    made = how.make(texts, context)
    facts = made.facts | {"store_ids": [r.store.store_id for r in made.reports]}
    write_embeddings(output, texts, made.vectors, facts, ids)
    return {
        "output": str(output),
        "n_texts": len(texts),
        "width": int(made.vectors.shape[1]),
        **{k: facts[k] for k in ("arrays", "layers", "store_ids") if k in facts},
        "n_tokens_computed": made.n_tokens_computed,
        "n_truncated": max([made.n_truncated, *(r.n_truncated for r in made.reports)]),
    }


def vectors_of(how: How, texts: Sequence[str], context: ExtractContext) -> Vectors:
    """The embeddings of `texts`, in order `[n_texts, d]` float32; raises as `embed_texts`."""
    return how.make(Texts.of(texts), context).vectors


def _each_once(
    make: "Callable[[Unique, ExtractContext], Made]", texts: Texts, context: ExtractContext
) -> "Made":
    digests = texts.map(text_digest)
    unique = Unique(*each_once([texts], [digests]))
    with numbered_by_first(texts, unique.texts):
        made = make(unique, context)
    return replace(made, vectors=made.vectors[numbered(digests)])


@dataclass(frozen=True)
class Unique:
    """Unique texts and their digests, in the same order."""

    texts: Sequence[str]
    digests: Sequence[str]


@dataclass(frozen=True)
class Made:
    """Vectors, and what they were computed from."""

    vectors: np.ndarray
    """One row per text."""
    reports: list[ExtractReport]
    """Reports of the extractions, one per member of an ensemble."""
    facts: dict[str, Any]
    """What decides the vectors, for the file."""
    n_tokens_computed: int
    n_truncated: int = 0
    """Texts cut at max_length that no extraction reports."""


@dataclass(frozen=True)
class _Extractions:
    """The stores of all prompts of an ensemble."""

    targets: list[ExtractTarget]
    context: ExtractContext
    load: Callable[[], Backbone]

    def run(
        self, config: EmbedConfig, texts: Unique
    ) -> tuple[list[StoredFeatures], list[ExtractReport]]:
        """Extract what `config` reads for these texts under every recipe."""
        prompt_features, reports = list[StoredFeatures](), list[ExtractReport]()
        for target in self.targets:
            arrays = required_arrays(config, target.sizes)
            report = extract_unique(replace(target, arrays=arrays), texts, self.context, self.load)
            prompt_features.append(StoredFeatures(report.store, target.sizes, texts.digests))
            reports.append(report)
        return prompt_features, reports


def development_pairs(file: str) -> Corpus:
    """Graded pairs for a choice of layers.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a wrong value.
    """
    before = _DEV_COLUMNS_BEFORE
    has_them = {*before.text_columns, before.label} <= set(column_names(Path(file)))
    task = before if has_them else DEV_COLUMNS
    return FilesCorpus(files={"dev": file}, task=task).build()


def _choose(config: EmbedConfig, dev: str | None, work: _Extractions) -> tuple[EmbedConfig, int]:
    """The config with the chosen layers, and the number of tokens computed for the choice."""
    if dev is None:
        raise InputError(
            f"--layers {config.layers} chooses layers on graded pairs, and none were given; add --dev FILE "
            f"with the columns {DEV_COLUMNS.text}, {DEV_COLUMNS.text_pair} and {DEV_COLUMNS.label}, or name "
            "the layers"
        )
    corpus = development_pairs(dev)
    gold = corpus.examples.column("label").to_numpy()
    # Before the backbone runs, which takes long.
    require_scores(gold)
    prompt_features, reports = work.run(config, Unique(corpus.texts, corpus.digests))
    by_prompt = [
        embed_layers(config, f, work.context.progress("choose layers")) for f in prompt_features
    ]
    vectors = {
        int(layer): embed_ensemble((layers[layer] for layers in by_prompt), config.combine)
        for layer in by_prompt[0]
    }
    pairs = np.stack([corpus.examples.column(c).to_numpy() for c in ("text", "text_pair")], axis=1)
    chosen = choose_layers(vectors, pairs, gold, config)
    return with_layers(config, chosen), sum(r.n_tokens for r in reports)


def extract_unique(
    target: ExtractTarget,
    texts: "Unique",
    context: ExtractContext,
    load: Callable[[], Backbone] | None,
) -> ExtractReport:
    """Compute what the store of a target lacks of these texts."""
    return extract(
        target,
        context.home,
        texts.texts,
        texts.digests,
        context.runtime,
        context.progress("extract"),
        load=load,
    )
