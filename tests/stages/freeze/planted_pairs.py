"""Random latents in which every layer mixes a hidden topic with noise; similarity is that of topics."""

import numpy as np

from permafrost.stages.freeze import GradedPairs

N_LAYERS, D_MODEL, D_TOPIC = 4, 12, 3


def make_latents(n_texts=400, seed=0):
    """Latents `[n_texts, 4, 12]` float32 and the topics `[n_texts, 3]` behind them."""
    rng = np.random.default_rng([seed, 1])
    topics = rng.normal(size=(n_texts, D_TOPIC))
    mixes = rng.normal(size=(N_LAYERS, D_TOPIC, D_MODEL))
    latents = np.einsum("nk,lkd->nld", topics, mixes)
    # A large common offset, as in real hidden states, hides the topic from plain cosines.
    latents += 6 + 0.3 * rng.normal(size=latents.shape)
    return latents.astype(np.float32), topics


def make_pairs(topics, texts, n_pairs, seed):
    """Graded pairs of the texts in a range; a label is the cosine of the two topics, moved to 0 to 1."""
    rng = np.random.default_rng([seed, 2])
    pairs = rng.integers(texts.start, texts.stop, (n_pairs, 2))
    unit = topics / np.linalg.norm(topics, axis=1, keepdims=True)
    labels = ((unit[pairs[:, 0]] * unit[pairs[:, 1]]).sum(axis=1) + 1) / 2
    return GradedPairs(pairs, np.clip(labels, 0, 1))
