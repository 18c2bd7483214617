"""Pretrain one autoencoder per layer on the latents of generic texts.

Source: FREEZE!, 4.2.3. The autoencoders share nothing: their losses are summed only so that one pass
computes all gradients, each layer has its own learning rate, and each keeps its own best epoch. We
differ: the notebooks keep the last epoch, take the texts in their order and drop the last partial batch.
Axes: n texts, l layers, d d_model.
"""

import numpy as np
import torch
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.freeze.batches import gather, shuffled_batches
from permafrost.stages.freeze.config import AutoencoderConfig
from permafrost.stages.freeze.encoders import LayerAutoencoders
from permafrost.stages.freeze.layer_rates import LayerwiseAdamW
from permafrost.stages.freeze.pretrained import AutoencoderResult, LayerEpoch
from permafrost.stages.freeze.step_log import StepLoss, steps_from
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.progress import Progress


def pretrain(
    config: AutoencoderConfig,
    latents: Float32[np.ndarray, "n l d"],
    progress: Progress,
    device: str = "cpu",
) -> AutoencoderResult:
    """Train every layer's autoencoder and keep its epoch with the least error on held-out texts.

    Args:
        config: sizes and training.
        latents: one row per text and layer, as `read_latents` gives them; a memory-mapped array does too.
        progress: told about every step.
        device: where to compute; not part of the config because it may not change the result beyond
            rounding and the masks of dropout.

    Raises:
        InputError: fewer than two texts.
        PermafrostError: an error of reconstruction is not finite.
    """
    train, dev = _held_out(config, len(latents))
    n_layers, d_model = latents.shape[1:]
    place = torch.device(device)
    draw = torch.Generator().manual_seed(config.seed)
    model = LayerAutoencoders(config.encoders, n_layers, d_model, draw).to(place)
    kept = LayerAutoencoders(config.encoders, n_layers, d_model, draw).to(place)
    rates = [config.lr * (1 + layer / n_layers) for layer in range(n_layers)]
    optimizer = LayerwiseAdamW(model, rates, config.weight_decay)
    history: list[LayerEpoch] = []
    log: list[StepLoss] = []
    best: dict[int, LayerEpoch] = {}
    steps = len(shuffled_batches(len(train), config.batch_size, config.seed, 1))
    progress.start("pretrain autoencoders", steps * config.max_epochs, "steps")
    try:
        for epoch in range(1, config.max_epochs + 1):
            learnt, losses = _train_epoch(config, model, optimizer, latents, train, epoch, progress)
            log += steps_from(log, epoch, losses)
            held = _errors(model, latents, dev, config.batch_size)
            _require_finite(held, config, epoch)
            rows = zip(learnt.tolist(), held.tolist(), strict=True)
            records = [LayerEpoch(epoch, layer, *row) for layer, row in enumerate(rows)]
            history += records
            better = [
                record
                for record in records
                if record.layer not in best or record.dev_mse < best[record.layer].dev_mse
            ]
            _keep(model, kept, {record.layer for record in better})
            best |= {record.layer: record for record in better}
    finally:
        progress.finish()
    state = {name: value.cpu() for name, value in kept.state_dict().items()}
    chosen = tuple(best[layer] for layer in range(n_layers))
    return AutoencoderResult(config, n_layers, d_model, chosen, tuple(history), state, tuple(log))


def require_texts(n_texts: int) -> None:
    """Check that some texts can be held out.

    Raises:
        InputError: there are fewer than two.
    """
    if n_texts < 2:
        raise InputError(
            f"autoencoders are trained on some texts and chosen on others, but there are {n_texts}; give "
            "at least 2"
        )


def _held_out(
    config: AutoencoderConfig, n_texts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Texts to train on and texts held out, both in order."""
    require_texts(n_texts)
    n_dev = min(max(1, round(config.dev_share * n_texts)), n_texts - 1)
    # A stream of its own, so that the split is not the permutation that orders the batches.
    order = np.random.default_rng([config.seed, 1 << 32]).permutation(n_texts)
    return np.sort(order[n_dev:]), np.sort(order[:n_dev])


def _train_epoch(
    config: AutoencoderConfig,
    model: LayerAutoencoders,
    optimizer: LayerwiseAdamW,
    latents: NDArray[np.float32],
    train: NDArray[np.int64],
    epoch: int,
    progress: Progress,
) -> tuple[Float[Tensor, " l"], list[float]]:
    """One pass over the texts; the mean error of each layer on the way, and that of all in each step."""
    model.train()
    place = next(model.parameters()).device
    total_L = torch.zeros(latents.shape[1], dtype=torch.float64, device=place)
    losses: list[float] = []
    for batch in shuffled_batches(len(train), config.batch_size, config.seed, epoch):
        errors_L = model.errors(gather(latents, train[batch], place))
        _require_finite(errors_L, config, epoch)
        errors_L.sum().backward()
        optimizer.step()
        total_L += errors_L.detach() * len(batch)
        losses.append(errors_L.mean().item())
        progress.advance(1, f"mse {losses[-1]:.4f}")
    return total_L / len(train), losses


@torch.no_grad()
def _errors(
    model: LayerAutoencoders,
    latents: NDArray[np.float32],
    texts: NDArray[np.int64],
    batch_size: int,
) -> Float[Tensor, " l"]:
    """The mean error of each layer on these texts, dropout off."""
    model.eval()
    place = next(model.parameters()).device
    total_L = torch.zeros(latents.shape[1], dtype=torch.float64, device=place)
    for start in range(0, len(texts), batch_size):
        batch = texts[start : start + batch_size]
        total_L += model.errors(gather(latents, batch, place)) * len(batch)
    return total_L / len(texts)


def _require_finite(errors_L: Tensor, config: AutoencoderConfig, epoch: int) -> None:
    values = errors_L.detach().cpu().numpy()
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise PermafrostError(
            f"the reconstruction error of layer {wrong[0]} (from 0) is {values[wrong[0]]} at epoch {epoch} "
            f"with lr {config.lr}; lower lr, or check the features with 'permafrost verify'"
        )


@torch.no_grad()
def _keep(model: LayerAutoencoders, kept: LayerAutoencoders, layers: set[int]) -> None:
    """Copy the parameters of these layers."""
    for layer, ((news, row), (olds, _)) in enumerate(
        zip(model.by_layer(), kept.by_layer(), strict=True)
    ):
        if layer in layers:
            for new, old in zip(news, olds, strict=True):
                old[row].copy_(new[row])
