"""Extracting features of a list of texts, without an experiment."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from permafrost.flows.context import SharedBackbone
from permafrost.stages.extraction.extract import ExtractReport, extract
from permafrost.stages.extraction.recipes.inputs import numbered_by_first
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime, resolve_target
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import Progress
from permafrost.storage.texts import Texts, each_once


def extract_texts(
    config: ExtractConfig,
    texts: Sequence[str],
    home: Path,
    runtime: ExtractRuntime,
    progress: Callable[[str], Progress],
) -> list[ExtractReport]:
    """Fill the store of a recipe, or one per prompt of an ensemble; the backbone is loaded at most once.

    Raises:
        InputError: the config cannot be resolved, or texts are too long and `runtime` refuses them.
    """
    rows = Texts.of(texts)
    unique, digests = each_once([rows], [rows.map(text_digest)])
    backbone, reports = SharedBackbone(), list[ExtractReport]()
    # All targets are resolved before the first one runs, so that a wrong prompt is reported at once.
    targets = [
        resolve_target(config.model_copy(update={"recipe": member}))
        for member in config.recipe.members()
    ]
    try:
        for number, target in enumerate(targets, start=1):
            part = f" ({number} of {len(targets)})" if len(targets) > 1 else ""
            shown = progress(f"extract {len(unique):,} texts{part}")
            load = partial(backbone.load, target, runtime.device, progress=shown)
            with numbered_by_first(rows, unique):
                reports.append(extract(target, home, unique, digests, runtime, shown, load=load))
            backbone.release()
    finally:
        backbone.drop()
    return reports
