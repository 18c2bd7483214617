"""Embeddings of texts with graphs by a trained model: graph and text alone, without the second branch."""

import numpy as np
import torch
from jaxtyping import Float32

from permafrost.stages.extraction.memory import is_out_of_memory
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.module import GraphTextModule
from permafrost.stages.finetune.trained import Finetuned
from permafrost.stages.finetune.trainee import SCORED_AT_A_TIME
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.progress import Progress


def require_embeds(tuned: Finetuned, name: str) -> None:
    """Raises: InputError: the model reads random vectors of nodes, which new nodes do not have."""
    if tuned.config.model.reads_graphs and tuned.config.node_features == "random":
        raise InputError(
            f"{name} is a control that was trained on random vectors of the nodes of its corpus, and other "
            "nodes have none; embed with a model whose node_features are stored"
        )


@torch.no_grad()
def embed_items(
    tuned: Finetuned,
    module: GraphTextModule,
    data: FinetuneData,
    device: str,
    progress: Progress,
) -> Float32[np.ndarray, "i d"]:
    """The embedding of every item of a corpus, in batches, on the device of the backbone if it runs one.

    In the same batches these are bitwise the embeddings that were scored.

    Args:
        tuned: the model; if it was trained on graphs of other items, each item still gets its own.
        module: what `Finetuned.module` made for this backbone.
        data: corpus, features and backbone.
        device: where to compute.
        progress: receives the items that are done.

    Raises:
        PermafrostError: an item does not fit in memory.
    """
    config = tuned.config.model_copy(update={"graphs": "true"})
    reader = data.controlled(config, module.tuned)
    where, n = torch.device(device), data.corpus.items.num_rows
    module = module.to(where)
    parts: list[torch.Tensor] = []
    at, size = 0, SCORED_AT_A_TIME
    progress.start("embed", n, "texts")
    try:
        while at < n:
            items = np.arange(at, min(at + size, n))
            try:
                z = module(reader.batch(items, where)).z.float().cpu()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                z = None
            # Not inside the handler, where the error still holds the tensors.
            if z is None:
                if len(items) == 1:
                    raise PermafrostError(
                        f"one text with its graph alone does not fit in the memory of {where}; use a smaller "
                        "graph, or free memory of this device"
                    )
                size = (len(items) + 1) // 2
                continue
            parts.append(z)
            at += len(items)
            progress.advance(len(items))
    finally:
        progress.finish()
    return torch.cat(parts).numpy()
