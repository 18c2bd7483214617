"""Optional: known scores of a trained decoder on STS-B (PERMAFROST_DATA and PERMAFROST_MODELS)."""

from dataclasses import dataclass

import pytest

from permafrost.stages.corpus.columns import Similarity
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.sources.files import FilesCorpus
from permafrost.stages.embed import EmbedConfig, StoredFeatures, embed
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime, resolve_target
from permafrost.stages.scoring.similarity import SimilarityConfig, score_pairs
from permafrost.storage.progress import SilentProgress
from tests.real_files import DATA, MODELS, needs_both

pytestmark = [needs_both, pytest.mark.deep]


@dataclass(frozen=True)
class Extracted:
    corpus: Corpus
    features: StoredFeatures


@pytest.fixture(scope="module")
def sts(tmp_path_factory: pytest.TempPathFactory) -> Extracted:
    task = Similarity(text="sentence1", text_pair="sentence2", label="score")
    test = DATA / "stsb" / "test.parquet"
    corpus = FilesCorpus(files={"test": str(test)}, task=task).build()
    config = ExtractConfig(
        backbone=BackboneConfig(source=str(MODELS / "mixed6m-gqa")),
        capture=parse_capture("hidden=final@tokens,values=1-6@tokens"),
    )
    target = resolve_target(config)
    report = extract(
        target,
        tmp_path_factory.mktemp("home"),
        corpus.texts,
        corpus.digests,
        ExtractRuntime(device="cpu"),
        SilentProgress(),
    )
    return Extracted(corpus, StoredFeatures(report.store, target.sizes, corpus.digests))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (EmbedConfig(method="mean"), 0.16),
        (EmbedConfig(method="va"), 0.31),
    ],
)
def test_scores_are_those_measured_when_the_decoder_was_made(
    sts: Extracted, config: EmbedConfig, expected: float
) -> None:
    """Spearman on STS-B test, as printed beside the model: two digits, so within half of the last one."""
    vectors = embed(config, sts.features, SilentProgress())
    found = score_pairs(SimilarityConfig(), vectors, sts.corpus).metrics["test"]
    assert found == pytest.approx(expected, abs=0.005)
