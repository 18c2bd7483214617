"""Train a pair head on graded pairs and keep its best epoch on dev.

Source: FREEZE!, 4.1 and 4.2. We differ in the selection: the notebooks keep the best epoch on test, here
dev selects and test is never read.

A fit depends on its config, its latents and its pairs alone. Nothing is drawn from torch's global
generator, so fits may run side by side in threads.
Axes: n texts, l layers, d d_model, p pairs.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.freeze.batches import gather, shuffled_batches
from permafrost.stages.freeze.build import build_pair_head
from permafrost.stages.freeze.config import PairFitConfig
from permafrost.stages.freeze.encoders import LayerAutoencoders
from permafrost.stages.freeze.losses import LOSSES
from permafrost.stages.freeze.pair_fit import GradedPairs, PairEpoch, PairFitResult
from permafrost.stages.freeze.pair_heads import CosineMlp, EncodedHead, PairHead, cosines
from permafrost.stages.freeze.step_log import StepLoss, steps_from
from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.progress import Progress

_PAIRS_AT_A_TIME = 256
_CORRELATIONS = {"pearson": pearson, "spearman": spearman}
_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def fit_pairs(
    config: PairFitConfig,
    latents: Float32[np.ndarray, "n l d"],
    train: GradedPairs,
    dev: GradedPairs,
    autoencoders: LayerAutoencoders | None,
    progress: Progress,
    device: str = "cpu",
) -> PairFitResult:
    """Train, evaluate dev every few epochs, keep the best evaluated epoch, the earliest of equal ones.

    Args:
        config: the head and its training.
        latents: one row per text and layer, as `read_latents` gives them; they get no gradient.
        train: the pairs that are learnt.
        dev: the pairs that choose the epoch.
        autoencoders: where the head's encoders start from; None for random initial weights.
        progress: told about every step.
        device: where to compute; not part of the config because it may not change the result beyond
            rounding and the masks of dropout.

    Raises:
        InputError: pairs or labels that are not usable, or autoencoders that do not fit the head.
        PermafrostError: the loss is not finite, or no evaluated epoch tells any two dev pairs apart.
    """
    train.require("train", len(latents))
    dev.require("dev", len(latents))
    n_layers, d_model = latents.shape[1:]
    place = torch.device(device)
    head = _start(config, latents, train, autoencoders, place)
    optimizer = _OPTIMIZERS[config.optimizer](
        head.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    history: list[PairEpoch] = []
    log: list[StepLoss] = []
    said = ""
    best: tuple[PairEpoch, float, dict[str, Tensor]] | None = None
    steps = len(shuffled_batches(len(train), config.batch_size, config.seed, 1))
    progress.start(f"fit {config.head.kind}", steps * config.max_epochs, "steps")
    try:
        for epoch in range(1, config.max_epochs + 1):
            loss, losses = _train_epoch(
                config, head, optimizer, latents, train, epoch, progress, said
            )
            log += steps_from(log, epoch, losses)
            score = None
            if epoch % config.evaluate_every == 0 or epoch == config.max_epochs:
                score = _correlation(config, predict(head, latents, dev.pairs), dev.labels)
                said = "" if score is None else f", dev {score:.4f}"
            history.append(PairEpoch(epoch, loss, score))
            if score is not None and (best is None or score > best[1]):
                # Cloned, since on the CPU the head goes on changing the same memory.
                state = {k: v.detach().cpu().clone() for k, v in head.state_dict().items()}
                best = history[-1], score, state
    finally:
        progress.finish()
    if best is None:
        raise PermafrostError(
            f"the head {config.head.kind} gives all {len(dev)} dev pairs the same similarity in every "
            f"evaluated epoch (lr {config.lr}, loss {config.loss}); lower lr or use the other loss"
        )
    return PairFitResult(config, n_layers, d_model, best[0], tuple(history), best[2], tuple(log))


@torch.no_grad()
def predict(
    head: PairHead, latents: Float32[np.ndarray, "n l d"], pairs: Int64[np.ndarray, "p 2"]
) -> Float32[np.ndarray, " p"]:
    """The similarity of each pair, in [0, 1], dropout off, on the device of the head.

    Raises:
        PermafrostError: a similarity is not a number.
    """
    head.eval()
    place = next(head.parameters()).device
    parts = [head(a, b).cpu().numpy() for a, b in _in_order(latents, pairs, place)]
    found_P = np.concatenate([np.empty(0, np.float32), *parts])
    wrong = np.flatnonzero(~np.isfinite(found_P))
    if len(wrong):
        first, second = pairs[wrong[0]]
        raise PermafrostError(
            f"{len(wrong)} of {len(pairs)} similarities are not numbers (the first is that of the texts "
            f"{first} and {second}); check the features with 'permafrost verify'"
        )
    return found_P


def _in_order(
    latents: NDArray[np.float32], pairs: NDArray[np.int64], place: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(pairs), _PAIRS_AT_A_TIME):
        batch = pairs[start : start + _PAIRS_AT_A_TIME]
        yield gather(latents, batch[:, 0], place), gather(latents, batch[:, 1], place)


def _start(
    config: PairFitConfig,
    latents: NDArray[np.float32],
    train: GradedPairs,
    autoencoders: LayerAutoencoders | None,
    place: torch.device,
) -> PairHead:
    """A fresh head on its device; the same seed gives the same weights on every device."""
    draw = torch.Generator().manual_seed(config.seed)
    head = build_pair_head(config.head, latents.shape[1], latents.shape[2], draw)
    if autoencoders is not None:
        if not isinstance(head, EncodedHead):
            raise InputError(
                f"autoencoders were given to the head {config.head.kind}, which has no encoders; leave them "
                "out, or use autoencoder_siamese"
            )
        head.load_encoders(autoencoders)
    head.to(place)
    if isinstance(head, CosineMlp):
        head.standardise_by(
            torch.cat([cosines(a, b) for a, b in _in_order(latents, train.pairs, place)])
        )
    return head


def _train_epoch(
    config: PairFitConfig,
    head: PairHead,
    optimizer: torch.optim.Optimizer,
    latents: NDArray[np.float32],
    train: GradedPairs,
    epoch: int,
    progress: Progress,
    said: str,
) -> tuple[float, list[float]]:
    """One pass over the pairs; the mean loss on the way, and that of each step."""
    head.train()
    place = next(head.parameters()).device
    total, losses = 0.0, list[float]()
    batches = shuffled_batches(len(train), config.batch_size, config.seed, epoch)
    for step, batch in enumerate(batches):
        first, second = train.pairs[batch].T
        predicted = head(gather(latents, first, place), gather(latents, second, place))
        gold = torch.from_numpy(train.labels[batch]).to(predicted)
        loss = LOSSES[config.loss](predicted, gold)
        value = loss.item()
        if not np.isfinite(value):
            raise PermafrostError(
                f"the loss {config.loss} is {value} at epoch {epoch}, step {step} of the head "
                f"{config.head.kind} with lr {config.lr}; lower lr, or check the features with "
                "'permafrost verify'"
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += value * len(batch)
        losses.append(value)
        progress.advance(1, f"loss {value:.4f}{said}")
    return total / len(train), losses


def _correlation(
    config: PairFitConfig, predicted: NDArray[np.float32], labels: NDArray[np.float64]
) -> float | None:
    if np.ptp(predicted) == 0:
        return None
    return _CORRELATIONS[config.metric](predicted.astype(np.float64), labels)
