"""Answers of a trained head to new texts, from cached features as far as it reads any."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from permafrost.flows.texts.embedding import ExtractContext, Unique, extract_unique
from permafrost.stages.corpus.texts import TextsOfRows
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.encoder.answers import require_sides
from permafrost.stages.encoder.graph_text import graph_text_use
from permafrost.stages.encoder.load import find_answers
from permafrost.stages.encoder.model_card import source_name
from permafrost.stages.encoder.predicted import Predicted
from permafrost.stages.encoder.predictions_file import (
    predictions_of,
    require_predictions_place,
    write_predictions,
)
from permafrost.stages.encoder.tuned import is_tuned_head, load_tuned
from permafrost.stages.extraction.backbone import load_backbone
from permafrost.stages.extraction.extract import ExtractReport
from permafrost.stages.extraction.lengths import measure, refuse_too_long
from permafrost.stages.extraction.recipes.inputs import numbered_by_first
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest, to_plain
from permafrost.storage.texts import Texts, each_once, numbered


@dataclass(frozen=True)
class Answered:
    """Answers, and what they were computed from."""

    predicted: Predicted
    facts: dict[str, Any]
    """What decides the answers, for the file."""
    n_tokens_computed: int
    n_truncated: int


def predict_rows(
    head: str, backbone: str | None, rows: TextsOfRows, output: Path, context: ExtractContext
) -> dict[str, Any]:
    """Write the answers of a head to texts or pairs, and return a summary; raises as `answers_to`."""
    require_predictions_place(output)
    found = answers_to(head, backbone, rows.texts, rows.pairs, context)
    table = predictions_of(rows, found.predicted)
    write_predictions(output, table, found.facts)
    return {
        "output": str(output),
        "n_texts": table.num_rows,
        "columns": table.column_names,
        **{name: found.facts[name] for name in ("head", "task", "classes", "arrays")},
        "n_tokens_computed": found.n_tokens_computed,
        "n_truncated": found.n_truncated,
    }


def answers_to(
    head: str,
    backbone: str | None,
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    context: ExtractContext,
) -> Answered:
    """The answers of a trained head, in the order of the texts; what is missing is extracted and stored.

    Args:
        head: `fit/<key>`, `choose/<key>`, `linear/<key>` or `finetune/<key>`, or the beginning of a key.
        backbone: where the backbone is now; None if it has not moved.
        texts: of single texts, or the first of each pair.
        text_pairs: the second of each pair; None for single texts.
        context: where and how features are extracted.

    Raises:
        NotFoundError: there is no such artifact, or its feature store is gone.
        InputError: it does not answer, or not to texts of this kind.
        IdentityMismatchError: the backbone is a different one; the message has both digests.
    """
    if is_tuned_head(context.home, head):
        return _by_tuned(head, backbone, texts, text_pairs, context)
    if (use := graph_text_use(context.home, head)) is not None:
        raise InputError(
            f"{use.what}, and answers on the cases of its corpus alone (predictions.parquet of its score); "
            f"{use.advice}"
        )
    return _by_features(head, backbone, texts, text_pairs, context)


def _by_features(
    head: str,
    backbone: str | None,
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    context: ExtractContext,
) -> Answered:
    fitted = find_answers(context.home, head, backbone)
    answers, targets = fitted.answers, fitted.targets
    require_sides(answers, texts, text_pairs)
    each = [Texts.of(side) for side in (texts, text_pairs) if side is not None]
    digests = [side.map(text_digest) for side in each]
    unique = Unique(*each_once(each, digests))
    every = pa.concat_arrays([pa.array(d, pa.large_string()) for d in digests])
    sides = numbered(Texts(every)).astype(np.int64).reshape(len(each), -1)
    # The prompts of an ensemble share the backbone, which is loaded at most once.
    first = targets[0]
    load = cache(
        partial(load_backbone, first.files, first.identity.compute_dtype, context.runtime.device)
    )
    parts, reports, name = list[Vectors](), list[ExtractReport](), None
    for target in targets:
        with numbered_by_first(chain.from_iterable(each), unique.texts):
            report = extract_unique(target, unique, context, load)
        features = StoredFeatures(report.store, target.sizes, unique.digests)
        parts.append(answers.of(features, context.progress("predict")))
        reports.append(report)
        name = name or features.name
    assert name is not None, "a head reads at least one store"
    predicted = answers.answer(answers.joined(parts, name), sides)
    return Answered(
        predicted,
        {
            **_facts(str(fitted.ref), answers.task, answers.class_names, first),
            "stores": [to_plain(t.identity) for t in targets],
            "store_ids": [r.store.store_id for r in reports],
        },
        sum(r.n_tokens for r in reports),
        max(r.n_truncated for r in reports),
    )


def _by_tuned(
    head: str,
    backbone: str | None,
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    context: ExtractContext,
) -> Answered:
    encoder = load_tuned(context.home, head, backbone, device=context.runtime.device)
    base, knows = encoder.fitted.base, encoder.fitted.tuned.head
    first, second = list(texts), None if text_pairs is None else list(text_pairs)
    unique = list(dict.fromkeys([*first, *(second or ())]))
    if context.runtime.too_long == "refuse":
        digests = list(map(text_digest, unique))
        refuse_too_long(base, context.home, unique, digests, context.runtime.block_texts)
    predicted = encoder.predict(first, second, context.progress("predict"))
    measured = measure(base, unique)
    return Answered(
        predicted,
        {
            **_facts(str(encoder.fitted.ref), knows.facts.task, knows.label_names, base),
            "trained_from": to_plain(base.identity),
        },
        int(measured.lengths.sum()),
        int(measured.truncated.sum()),
    )


def _facts(
    head: str, task: str, class_names: tuple[str, ...], target: ExtractTarget
) -> dict[str, Any]:
    return {
        "head": head,
        "task": task,
        "classes": list(class_names),
        "arrays": list(target.arrays),
        "backbone": source_name(target.files),
    }
