"""Bars of other libraries would tear up the progress display of a run."""

import sys
from functools import partial
from typing import Any

import datasets
from mteb.abstasks import AbsTaskSummarization
from tqdm.auto import tqdm


def silence_bars() -> None:
    """Switch off the bars of `datasets`, and the one of mteb's that no argument reaches."""
    datasets.disable_progress_bars()
    summaries: Any = sys.modules[AbsTaskSummarization.evaluator.__module__]
    summaries.tqdm = partial(tqdm, disable=True)
