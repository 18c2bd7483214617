"""Reading the local evaluation data of any kind of task."""

from collections.abc import Callable
from typing import Any

from permafrost.stages.corpus.table_files import file_identity
from permafrost.stages.mteb_evaluation.labelled_data import (
    read_classification,
    read_clustering,
    read_pair_classification,
    read_sts,
)
from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.search_data import read_reranking, read_retrieval
from permafrost.stages.mteb_evaluation.summary_data import read_summarization
from permafrost.stages.mteb_evaluation.tasks import (
    ClassificationTask,
    ClusteringTask,
    LocalTask,
    PairClassificationTask,
    RerankingTask,
    RetrievalTask,
    StsTask,
    SummarizationTask,
)

_READERS: dict[type, Callable[[Any], LocalData]] = {
    StsTask: read_sts,
    PairClassificationTask: read_pair_classification,
    ClassificationTask: read_classification,
    ClusteringTask: read_clustering,
    RetrievalTask: read_retrieval,
    RerankingTask: read_reranking,
    SummarizationTask: read_summarization,
}


def read_local(config: LocalTask) -> LocalData:
    """Read and check the data of a local task.

    Raises:
        InputError: a file or column is missing, there are no rows, a value is missing or of the wrong type,
            an id occurs twice, a judgement names an unknown query or document, or nothing can be scored.
    """
    return _READERS[type(config)](config)


def file_digests(config: LocalTask) -> dict[str, str]:
    """Extension and SHA-256 of every file of a task, by what it holds.

    Raises:
        InputError: a file is missing.
    """
    identities = {holds: file_identity(config.file(holds)) for holds in config.stems}
    return {holds: f"{file['format']} {file['sha256']}" for holds, file in identities.items()}
