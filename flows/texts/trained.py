"""What embeds texts by the name of its artifact: a head, one with its backbone, or a graph-text model."""

from pathlib import Path

from permafrost.flows.texts.embedding import ByHead
from permafrost.flows.texts.graph_embedding import ByGraphText
from permafrost.flows.texts.tuned_embedding import ByTunedHead
from permafrost.stages.corpus.text_format import USUAL, TextFormat
from permafrost.stages.encoder.graph_text import FINETUNE, GraphsOfTexts
from permafrost.stages.encoder.tuned import is_tuned_head
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import InputError


def trained_model(
    home: Path,
    artifact: str,
    backbone: str | None,
    graphs: GraphsOfTexts,
    table: Path | None = None,
    how: TextFormat = USUAL,
) -> ByHead | ByTunedHead | ByGraphText:
    """The head or model of an artifact.

    Args:
        home: where it lies.
        artifact: its name, or the beginning of its key.
        backbone: where the backbone is now; None if it has not moved.
        graphs: for a graph-text model.
        table: whose column the texts are.
        how: the table is written.

    Raises:
        NotFoundError: there is no such artifact.
        InputError: a head was given graphs.
    """
    tuned = is_tuned_head(home, artifact)
    if not tuned and ArtifactStore(home).find(artifact).stage == FINETUNE:
        return ByGraphText(artifact, backbone, graphs, table, how)
    if graphs is not None:
        raise InputError(
            f"{artifact} reads texts alone, and graphs were given; leave them out, or name a graph-text "
            f"model ({FINETUNE}/<key>)"
        )
    return ByTunedHead(artifact, backbone) if tuned else ByHead(artifact, backbone)
