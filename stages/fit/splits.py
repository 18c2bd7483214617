"""The train and dev examples of a fit: checked, and shuffled for the control."""

from dataclasses import replace
from typing import Literal

import numpy as np

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.losses.loss import default_loss
from permafrost.stages.fit.metrics import METRICS, Metric
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Splits = tuple[Examples, Examples]
"""Train and dev."""


def require_fitting(config: FitConfig, data: FitData) -> None:
    """Check that a head goes with a corpus of this kind.

    Raises:
        InputError: the loss or metric is not for this kind of corpus, or a batch is too small for the loss.
    """
    loss = config.loss
    if data.task not in loss.task_kinds:
        raise InputError(
            f"loss {loss.kind} is not for a corpus of kind {quoted(data.task)}; set loss to "
            f"{{kind: {default_loss(data.task).kind}}}"
        )
    require_metric(config.metric, data)
    if config.optim.batch_size < loss.least_batch:
        raise InputError(
            f"optim.batch_size is {config.optim.batch_size}, but loss {loss.kind} tells the examples of a "
            f"batch apart; use {loss.least_batch} or more"
        )


def require_parameters(config: FitConfig, data: FitData) -> None:
    """Check that a head has something to train by itself.

    Raises:
        InputError: neither the head nor the kind of corpus has parameters.
    """
    loss = config.loss
    if data.task == "unlabelled" and not config.head.trains:
        raise InputError(
            f"head {config.head.kind} has no parameters and loss {loss.kind} adds none, so there is nothing "
            "to train; use another head, or a method of kind 'embed'"
        )


def require_trainable(config: FitConfig, data: FitData) -> None:
    """Check everything about a fit that can be checked without features.

    Raises:
        InputError: see `require_fitting`, `require_parameters`, `splits` and `require_negatives`.
    """
    require_fitting(config, data)
    require_parameters(config, data)
    train, _ = splits(config.seed, config.labels, data)
    require_negatives(config, train)


def require_metric(metric: Metric, data: FitData) -> None:
    """Check that a metric is defined for a corpus.

    Raises:
        InputError: it does not.
    """
    if metric not in METRICS[data.task]:
        raise InputError(
            f"metric {metric} is not defined for a corpus of kind {quoted(data.task)}; use one of "
            f"{', '.join(METRICS[data.task])}"
        )
    if metric == "f1" and len(data.label_names) != 2:
        raise InputError(
            f"metric f1 is that of class 1 of two, but the corpus has {len(data.label_names)} classes; "
            "use accuracy or mcc"
        )


def splits(seed: int, labels: Literal["true", "shuffled"], data: FitData) -> Splits:
    """The train and dev examples of a fit with this seed and these labels.

    Raises:
        InputError: there are no train or dev examples, or nothing can be learnt from them.
    """
    train, dev = data.split("train"), data.split("dev")
    match data.task:
        case "classification" | "pair_classification":
            _require_classes(train, data)
        case "similarity":
            require_spread(train)
            require_spread(dev)
        case "unlabelled":
            require_rivals(train)
            require_rivals(dev)
    if labels == "true":
        return train, dev
    shuffled = _other_partners if data.task == "unlabelled" else _other_labels
    # Separate random streams, so that neither permutation is the one that orders the batches.
    return (
        shuffled(train, np.random.default_rng([seed, 1 << 32, 0])),
        shuffled(dev, np.random.default_rng([seed, 1 << 32, 1])),
    )


def require_spread(examples: Examples) -> None:
    """Check that not all scores are equal.

    Raises:
        InputError: they are.
    """
    if np.ptp(examples.labels) == 0:
        raise InputError(
            f"all {len(examples)} {examples.split} labels are {examples.labels[0]:.6g}, so there is nothing "
            "to learn or to correlate with; use a split with different labels"
        )


def require_rivals(examples: Examples) -> None:
    """Check that there are different partners to rank.

    Raises:
        InputError: all pairs have the same second text.
    """
    if len(np.unique(examples.sides[1])) < 2:
        raise InputError(
            f"the {len(examples)} {examples.split} pairs all have the same second text, so every rank is 1; "
            "give pairs with at least two different second texts"
        )


def require_negatives(config: FitConfig, train: Examples) -> None:
    """Check that there are hard negatives where the loss adds them.

    Raises:
        InputError: there are none.
    """
    if config.loss.adds_negatives and (train.negatives is None or not len(train.negatives.data)):
        raise InputError(
            "loss.hard_negatives is 'add', but no train example of the corpus has one; name the column that "
            "holds them as 'negative' in the corpus' task, or set hard_negatives to 'ignore'"
        )


def _require_classes(train: Examples, data: FitData) -> None:
    classes = np.unique(train.labels)
    if len(classes) < 2:
        raise InputError(
            f"all {len(train)} train examples have the label {quoted(data.label_names[int(classes[0])])}; "
            "there is nothing to learn, give examples of at least two classes"
        )


def _other_labels(split: Examples, rng: np.random.Generator) -> Examples:
    return replace(split, labels=split.labels[rng.permutation(len(split))])


def _other_partners(split: Examples, rng: np.random.Generator) -> Examples:
    first, second = split.sides
    moved = rng.permutation(len(split))
    # Negatives move with the partner that they are contrasted with.
    negatives = None if split.negatives is None else split.negatives.take(moved)
    return replace(split, sides=(first, second[moved]), negatives=negatives)
