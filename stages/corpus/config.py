"""Where a corpus comes from: files, a dataset, or a generator; and what of that is its identity."""

from typing import Annotated, Any

from pydantic import Field

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.concatenated import ConcatenatedCorpus, concatenated_facts
from permafrost.stages.corpus.dilution import DilutionCorpus, dilution_facts
from permafrost.stages.corpus.files import FilesCorpus, files_facts
from permafrost.stages.corpus.hub import HubCorpus, hub_facts
from permafrost.stages.corpus.reranking import RerankingCorpus, reranking_facts
from permafrost.stages.corpus.retrieval import RetrievalCorpus, retrieval_facts
from permafrost.stages.corpus.segments import SegmentsCorpus, segments_facts

CorpusConfig = Annotated[
    FilesCorpus
    | HubCorpus
    | RetrievalCorpus
    | RerankingCorpus
    | DilutionCorpus
    | SegmentsCorpus
    | ConcatenatedCorpus,
    Field(discriminator="kind"),
]


def task_kind(config: CorpusConfig) -> TaskKind:
    """What a corpus is for, known before it is read."""
    if isinstance(config, FilesCorpus | HubCorpus | RetrievalCorpus | RerankingCorpus):
        return config.task.kind
    if isinstance(config, ConcatenatedCorpus):
        return config.source.task.kind
    return "unlabelled" if isinstance(config, SegmentsCorpus) else "classification"


def surface_at_chance(config: CorpusConfig) -> bool:
    """Whether a task is made so that neither the words of a text nor its length tell its label."""
    return isinstance(config, DilutionCorpus)


def corpus_facts(config: CorpusConfig) -> dict[str, Any]:
    """What goes into the key of a corpus: names of files and branches replaced by what they stand for.

    Reads bytes but parses nothing. Plain JSON types.

    Raises:
        InputError: a file or dataset that does not exist, cannot be read or cannot be resolved.
    """
    if isinstance(config, FilesCorpus):
        return files_facts(config)
    if isinstance(config, HubCorpus):
        return hub_facts(config)
    if isinstance(config, RetrievalCorpus):
        return retrieval_facts(config)
    if isinstance(config, RerankingCorpus):
        return reranking_facts(config)
    if isinstance(config, SegmentsCorpus):
        return segments_facts(config)
    if isinstance(config, ConcatenatedCorpus):
        return concatenated_facts(config)
    return dilution_facts(config)
