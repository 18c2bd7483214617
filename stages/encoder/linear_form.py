"""Linear classifiers in exported folders: their files, and the layer that sentence-transformers computes.

A folder of the plain form has a backbone without the blocks that are not read, so layers are written as
indices there: `last` or `-2` would be others.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.config import layers_of
from permafrost.stages.encoder.answers import LinearAnswers
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.linear.model import LinearModel, load_linear
from permafrost.storage.quoting import quoted


def why_not_classes(model: LinearModel) -> str | None:
    """Why no layer of sentence-transformers gives the logits of a classifier; None if one does."""
    if model.task != "classification":
        return (
            f"a linear classifier of pairs sees more of two vectors (pair_features: {model.pair_features}) "
            "than a layer of sentence-transformers"
        )
    if model.classifier != "logistic":
        return (
            f"the classifier is a {quoted(model.classifier)}, whose values are no logits: it has classes and "
            "no probabilities"
        )
    known = set(model.classes.tolist())
    missing = [name for i, name in enumerate(model.label_names) if i not in known]
    if missing:
        return f"no text of train has the class {quoted(missing[0])}, so it has no logit"
    return None


def logits_layer(model: LinearModel) -> torch.nn.Linear:
    """The layer whose softmax is the probabilities of a classifier without an obstacle; what is standardised
    before is put into its weights."""
    weight = model.coef / model.scale
    bias = model.intercept - weight @ model.mean
    if len(weight) == 1:
        # Of two classes the first one's logit is 0.
        weight, bias = (np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias))
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


def logits(model: LinearModel, vectors: Vectors) -> Float64[np.ndarray, "n n_classes"]:
    """What that layer gives, by the classifier itself."""
    values = model.decide(vectors)
    return values if values.shape[1] > 1 else np.hstack([np.zeros_like(values), values])


def write_linear(answers: LinearAnswers, folder: Path) -> None:
    """Write the files of a classifier into a folder that is there."""
    layers = ",".join(map(str, layers_of(answers.config, answers.sizes)))
    vectors = answers.config.model_copy(update={"layers": layers})
    replace(answers.model, vectors=vectors).save(folder)


def read_linear(folder: Path, targets: tuple[ExtractTarget, ...]) -> LinearAnswers:
    """What `write_linear` wrote.

    Raises:
        NotFoundError: the folder holds no classifier.
        CorruptDataError: its files do not describe one.
    """
    model = load_linear(folder)
    assert model.vectors is not None, "classifiers on heads are of a stage that is not exported"
    return LinearAnswers(model.vectors, targets[0].sizes, len(targets), model=model)
