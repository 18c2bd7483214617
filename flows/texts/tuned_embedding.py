"""Embeddings of texts by a head that was trained with its backbone. No store holds what that one computes."""

from dataclasses import dataclass

from permafrost.flows.texts.embedding import ExtractContext, Made
from permafrost.stages.encoder.tuned import load_tuned
from permafrost.stages.extraction.lengths import measure, refuse_too_long
from permafrost.storage.keys import text_digest, to_plain
from permafrost.storage.texts import Texts


@dataclass(frozen=True)
class ByTunedHead:
    """A head and the backbone that was trained with it."""

    artifact: str
    backbone: str | None
    """Where the backbone that was trained is now; None if it has not moved."""

    def make(self, texts: Texts, context: ExtractContext) -> Made:
        """A vector per text, and what they were computed from; raises as `load_tuned`."""
        encoder = load_tuned(
            context.home, self.artifact, self.backbone, device=context.runtime.device
        )
        base, rows = encoder.fitted.base, list(texts)
        unique = list(dict.fromkeys(rows))
        if context.runtime.too_long == "refuse":
            digests = list(map(text_digest, unique))
            refuse_too_long(base, context.home, unique, digests, context.runtime.block_texts)
        measured = measure(base, unique)
        facts = {
            "head": self.artifact,
            "arrays": list(base.arrays),
            "trained_from": to_plain(base.identity),
        }
        return Made(
            encoder.encode(rows, context.progress("embed")),
            [],
            facts,
            int(measured.lengths.sum()),
            n_truncated=int(measured.truncated.sum()),
        )
