"""Computing again what a repair had to drop."""

from permafrost.stages.extraction.backbone import load_backbone
from permafrost.stages.extraction.extract import recompute_cells
from permafrost.stages.extraction.families import output_projection
from permafrost.stages.extraction.target import ExtractRuntime, target_of_store
from permafrost.stages.extraction.token_budget import batch_tokens
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.projections import write_projection
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.repairing import Mended
from permafrost.storage.features.store import ALWAYS
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import Progress


def compute_again(mended: Mended, source: str | None, progress: Progress) -> str:
    """Compute the cells and projections that `mended` lacks; returns what was done, in words.

    Batches are composed as by an extraction of all arrays of the store at once. Where the first extraction
    was one, on the same kind of machine and with the same number of threads, the bytes are the same again;
    otherwise numbers differ by the rounding that `verify --recompute` allows. The text says which.

    Args:
        mended: from `storage.features.repairing.mend`.
        source: where the backbone is now; None for where it was.
        progress: told the tokens done.

    Raises:
        IdentityMismatchError: the backbone found there is not the one the store was made with.
    """
    store = mended.store
    arrays = sorted({*store.arrays(), *(a for names in mended.cells.values() for a in names)})
    target = target_of_store(store.record, tuple(arrays), source)
    runtime = ExtractRuntime()
    backbone = load_backbone(target.files, target.identity.compute_dtype, runtime.device)
    captured = [a for a in arrays if a not in ALWAYS]
    budget = batch_tokens(target, captured, runtime, backbone.device)
    done: list[str] = []
    if mended.cells:
        tokens = recompute_cells(
            store,
            target,
            mended.cells,
            runtime.model_copy(update={"batch_tokens": budget}),
            progress,
            load=lambda: backbone,
        )
        n_cells = sum(map(len, mended.cells.values()))
        done.append(
            f"{n_cells} cell(s) computed again ({tokens:,} tokens), {_n_exact(mended)} of them known to have "
            f"the bytes that they had"
        )
    if mended.projections:
        with writing(store):
            for block in mended.projections:
                write_projection(store, block, *output_projection(backbone, block))
        done.append(f"{len(mended.projections)} output projection(s) stored again")
    return "; ".join(done)


def _n_exact(mended: Mended) -> int:
    store, exact = mended.store, 0
    for (segment, array), before in mended.receipts.items():
        try:
            exact += read_receipt(store.root, segment, array).seal == before.seal
        except CorruptDataError:
            continue
    return exact
