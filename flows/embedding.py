"""Embeddings of a file of texts: extract what is missing, pool what is cached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from stages.embed import EmbedConfig, Method, embed_with_head, pool, write_embeddings
from stages.extraction.capture import CaptureItem
from stages.extraction.extract import extract
from stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
    target_of_store,
)
from stages.fit import LoadedHead, load_head
from storage.artifacts import ArtifactStore
from storage.errors import InputError
from storage.features.store import FeatureStore, store_folder
from storage.keys import text_digest, to_plain
from storage.progress import Progress
from storage.readers import open_reader

READER_BYTES = 1 << 30


@dataclass(frozen=True)
class EmbedRequest:
    """What to embed with: a parameter-free method on a backbone, or a trained head."""

    extract: ExtractConfig | None
    method: str
    layers: str
    head: str | None
    backbone: str | None
    device: str
    batch_tokens: int


def embed_texts(
    request: EmbedRequest,
    texts: Sequence[str],
    home: Path,
    output: Path,
    progress: Callable[[str], Progress],
) -> dict[str, Any]:
    """Write the embeddings of `texts` to `output` and return a few figures.

    Raises:
        InputError: unknown method, layer or head.
    """
    head: LoadedHead | None = None
    if request.head is None:
        target = _pooling_target(request)
    else:
        head, target = _head_target(request, home)
    by_digest = {text_digest(t): t for t in texts}
    runtime = ExtractRuntime(device=request.device, batch_tokens=request.batch_tokens)
    report = extract(
        target, home, list(by_digest.values()), list(by_digest), runtime, progress("extract")
    )
    digests = [text_digest(t) for t in texts]
    readers = [
        open_reader(report.store, a, digests, budget_bytes=READER_BYTES) for a in target.arrays
    ]
    recipe: dict[str, Any] = {"store": to_plain(target.identity), "arrays": list(target.arrays)}
    if head is not None:
        vectors = embed_with_head(head, readers[0], progress("embed"))
        recipe["head"] = request.head
    else:
        config = EmbedConfig.model_validate({"method": request.method, "arrays": target.arrays})
        vectors = pool(config, readers, progress("embed"))
        recipe["method"] = request.method
    if not np.isfinite(vectors).all():
        raise InputError(
            f"the embeddings hold {int((~np.isfinite(vectors)).sum())} non-finite numbers"
        )
    write_embeddings(output, texts, vectors, recipe)
    return {
        "output": str(output),
        "n_texts": len(texts),
        "width": int(vectors.shape[1]),
        "arrays": list(target.arrays),
        "store_id": report.store.store_id,
        "n_tokens_computed": report.n_tokens,
        "n_truncated": report.n_truncated,
    }


def _pooling_target(request: EmbedRequest) -> ExtractTarget:
    if request.method not in get_args(Method):
        raise InputError(
            f"--method {request.method!r} is unknown; there are {', '.join(get_args(Method))}"
        )
    assert request.extract is not None
    target = resolve_target(request.extract)
    if request.layers != "last":
        return target
    last = "final" if target.sizes.has_final_norm else str(target.sizes.n_layers)
    names = CaptureItem(what="hidden", layers=last).names(target.sizes)
    return replace(target, arrays=tuple(n.text for n in names))


def _head_target(request: EmbedRequest, home: Path) -> tuple[LoadedHead, ExtractTarget]:
    artifacts = ArtifactStore(home)
    assert request.head is not None
    ref = artifacts.find(request.head)
    if ref.stage != "fit":
        raise InputError(f"--head {request.head} is a {ref.stage} artifact; give one of stage fit")
    manifest = artifacts.manifest(ref)
    head = load_head(artifacts.open(ref))
    stores = {i.split("/")[1] for i in manifest.spec.inputs if i.startswith("features/")}
    store = FeatureStore.open(store_folder(home, stores.pop()))
    return head, target_of_store(store.record, (head.layer,), request.backbone)
