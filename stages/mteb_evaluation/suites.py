"""Named sets of mteb tasks, as in papers and leaderboards; English subsets of multilingual tasks."""

from typing import Literal, get_args

from permafrost.stages.mteb_evaluation.tasks.hub import HubTask

SuiteName = Literal[
    "glot7",
    "va14",
    "htp30",
    "htp-beir",
    "htp-longembed",
    "beir",
    "longembed",
    "mteb-eng-v1",
    "mteb-eng-v2",
]
SUITE_NAMES: tuple[SuiteName, ...] = get_args(SuiteName)

_ENGLISH = {
    "AmazonCounterfactualClassification": "en",
    "AmazonReviewsClassification": "en",
    "MTOPDomainClassification": "en",
    "MTOPIntentClassification": "en",
    "MassiveIntentClassification": "en",
    "MassiveScenarioClassification": "en",
    "STS17": "en-en",
    "STS22": "en",
    "STS22.v2": "en",
}
"""The English subset of multilingual tasks."""

_CLASSIFICATION = (
    "AmazonCounterfactualClassification",
    "Banking77Classification",
    "ImdbClassification",
    "MTOPDomainClassification",
    "MassiveIntentClassification",
    "MassiveScenarioClassification",
    "ToxicConversationsClassification",
    "TweetSentimentExtractionClassification",
)
_CLUSTERING = (
    "ArXivHierarchicalClusteringP2P",
    "ArXivHierarchicalClusteringS2S",
    "BiorxivClusteringP2P.v2",
    "MedrxivClusteringP2P.v2",
    "MedrxivClusteringS2S.v2",
    "StackExchangeClustering.v2",
    "StackExchangeClusteringP2P.v2",
    "TwentyNewsgroupsClustering.v2",
)
_CLUSTERING_V1 = (
    "ArxivClusteringP2P",
    "ArxivClusteringS2S",
    "BiorxivClusteringP2P",
    "BiorxivClusteringS2S",
    "MedrxivClusteringP2P",
    "MedrxivClusteringS2S",
    "RedditClustering",
    "RedditClusteringP2P",
    "StackExchangeClustering",
    "StackExchangeClusteringP2P",
    "TwentyNewsgroupsClustering",
)
_PAIR_CLASSIFICATION = ("SprintDuplicateQuestions", "TwitterSemEval2015", "TwitterURLCorpus")
_RERANKING = ("AskUbuntuDupQuestions", "MindSmallReranking")
_STS = (
    "BIOSSES",
    "SICK-R",
    "STS12",
    "STS13",
    "STS14",
    "STS15",
    "STS17",
    "STS22.v2",
    "STSBenchmark",
)
_RETRIEVAL = (
    "ArguAna",
    "CQADupstackGamingRetrieval",
    "CQADupstackUnixRetrieval",
    "ClimateFEVERHardNegatives",
    "FEVERHardNegatives",
    "FiQA2018",
    "HotpotQAHardNegatives",
    "SCIDOCS",
    "TRECCOVID",
    "Touche2020Retrieval.v3",
)
_BEIR = (
    "TRECCOVID",
    "NFCorpus",
    "NQ",
    "HotpotQA",
    "FiQA2018",
    "ArguAna",
    "Touche2020",
    "CQADupstackRetrieval",
    "QuoraRetrieval",
    "DBPedia",
    "SCIDOCS",
    "FEVER",
    "ClimateFEVER",
    "SciFact",
    "MSMARCO",
)
_WITHOUT_SEARCH = (
    *_CLASSIFICATION,
    *_CLUSTERING,
    *_PAIR_CLASSIFICATION,
    *_RERANKING,
    *_STS,
)

_NAMES: dict[SuiteName, tuple[str, ...]] = {
    # GLOT, table 3. Its SummEval is mteb's first version, whose correlations are averaged with p-values
    # (mteb issue 1156), so that a random embedding has about 0.25; SummEvalSummarization.v2 is sound.
    "glot7": (
        "EmotionClassification",
        "SciFact",
        "RedditClustering",
        "AskUbuntuDupQuestions",
        "STS12",
        "TwitterSemEval2015",
        "SummEval",
    ),
    # Value Aggregation, table 5, in its order.
    "va14": (
        "BiorxivClusteringS2S",
        "MedrxivClusteringS2S",
        "TwentyNewsgroupsClustering",
        "SciFact",
        "NFCorpus",
        "ArguAna",
        "STS17",
        "SICK-R",
        "STSBenchmark",
        "Banking77Classification",
        "EmotionClassification",
        "SprintDuplicateQuestions",
        "StackOverflowDupQuestions",
        "SciDocsRR",
    ),
    # HTP, appendix B.2 and table 19.
    "htp30": (
        "AmazonCounterfactualClassification",
        "AmazonReviewsClassification",
        "Banking77Classification",
        "EmotionClassification",
        "ImdbClassification",
        "MassiveIntentClassification",
        "MassiveScenarioClassification",
        "MTOPDomainClassification",
        "MTOPIntentClassification",
        "ToxicConversationsClassification",
        "TweetSentimentExtractionClassification",
        "AskUbuntuDupQuestions",
        "MindSmallReranking",
        "StackOverflowDupQuestions",
        *_CLUSTERING_V1,
        "STS12",
        "STS13",
        "STS14",
        "STS15",
        "STS16",
    ),
    # HTP, table 1.
    "htp-beir": (
        "ArguAna",
        "FiQA2018",
        "HotpotQA",
        "NFCorpus",
        "SCIDOCS",
        "SciFact",
        "TRECCOVID",
    ),
    # HTP, table 2: LongEmbed without Needle and Passkey.
    "htp-longembed": (
        "LEMBNarrativeQARetrieval",
        "LEMBQMSumRetrieval",
        "LEMBWikimQARetrieval",
        "LEMBSummScreenFDRetrieval",
    ),
    "beir": _BEIR,
    "longembed": (
        "LEMBNarrativeQARetrieval",
        "LEMBNeedleRetrieval",
        "LEMBPasskeyRetrieval",
        "LEMBQMSumRetrieval",
        "LEMBSummScreenFDRetrieval",
        "LEMBWikimQARetrieval",
    ),
    # The leaderboard of GLOT's table 12: 56 tasks, the searches those of BEIR.
    "mteb-eng-v1": (
        "AmazonPolarityClassification",
        "AmazonReviewsClassification",
        "AmazonCounterfactualClassification",
        "Banking77Classification",
        "EmotionClassification",
        "ImdbClassification",
        "MTOPDomainClassification",
        "MTOPIntentClassification",
        "MassiveIntentClassification",
        "MassiveScenarioClassification",
        "ToxicConversationsClassification",
        "TweetSentimentExtractionClassification",
        *_CLUSTERING_V1,
        "SprintDuplicateQuestions",
        "TwitterSemEval2015",
        "TwitterURLCorpus",
        "AskUbuntuDupQuestions",
        "MindSmallReranking",
        "SciDocsRR",
        "StackOverflowDupQuestions",
        "BIOSSES",
        "SICK-R",
        "STS12",
        "STS13",
        "STS14",
        "STS15",
        "STS16",
        "STS17",
        "STS22",
        "STSBenchmark",
        "SummEval",
        *_BEIR,
    ),
    "mteb-eng-v2": (*_WITHOUT_SEARCH, *_RETRIEVAL, "SummEvalSummarization.v2"),
}


_OWN_SPLITS: tuple[SuiteName, ...] = ("beir", "longembed", "htp-longembed")
"""Suites whose tasks are evaluated on mteb's default splits; the others on `test` only."""
_SPLITS: dict[tuple[SuiteName, str], tuple[str, ...]] = {("mteb-eng-v1", "MSMARCO"): ("dev",)}
"""Of single tasks."""


def suite(name: SuiteName) -> dict[str, HubTask]:
    """The tasks of a suite by name."""
    splits = () if name in _OWN_SPLITS else ("test",)
    return {
        task: HubTask(
            name=task,
            subsets=(_ENGLISH[task],) if task in _ENGLISH else (),
            splits=_SPLITS.get((name, task), splits),
        )
        for task in _NAMES[name]
    }
