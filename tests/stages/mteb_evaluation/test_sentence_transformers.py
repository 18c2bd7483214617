"""The same scores as sentence-transformers and mteb alone, on the packaged MiniLM and a task of every kind.

With PERMAFROST_DATA, also on slices of its folders.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from mteb.models.instruct_wrapper import InstructSentenceTransformerModel
from pydantic import TypeAdapter
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from permafrost.stages.embed import EmbedConfig, StoredFeatures
from permafrost.stages.encoder.vectors import MethodVectors
from permafrost.stages.extraction.backbone import BackboneConfig, load_backbone
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.recipes import PlainRecipe
from permafrost.stages.extraction.target import ExtractRuntime, resolve_backbone
from permafrost.stages.mteb_evaluation import (
    Embedding,
    Instructions,
    Role,
    evaluate_task,
    task_instructions,
)
from permafrost.stages.mteb_evaluation.build import build_task
from permafrost.stages.mteb_evaluation.task import ROLES
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.progress import SilentProgress
from tests.real_files import DATA, needs_data
from tests.stages.mteb_evaluation.small_tasks import KINDS, task, write_tasks

MAX_LENGTH = 256
"""What sentence-transformers cuts MiniLM's inputs at."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    # mteb about its own call, when it wraps a model of sentence-transformers.
    pytest.mark.filterwarnings("ignore:The fill_missing parameter:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension`:FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def embedding(home: Path, recipes: Mapping[Role, PlainRecipe]) -> Embedding:
    """The mean over all tokens, from float32 stores that fill as they are asked, one per recipe."""
    config = BackboneConfig(source="minilm", max_length=MAX_LENGTH)
    base = resolve_backbone(config, "float32", "none")
    array = f"hidden/{base.sizes.n_layers}"
    targets = {role: base.target(recipe, (array,)) for role, recipe in recipes.items()}
    backbone = load_backbone(base.files, base.backbone.dtype, "cpu")

    def features(role: Role, texts: Mapping[str, str]) -> Sequence[StoredFeatures]:
        target = targets[role]
        report = extract(
            target,
            home,
            list(texts.values()),
            list(texts),
            ExtractRuntime(device="cpu"),
            SilentProgress(),
            load=lambda: backbone,
        )
        assert isinstance(report.store, FeatureStore)
        return [StoredFeatures(report.store, target.sizes, list(texts))]

    method = EmbedConfig(method="mean", normalise="l2")
    vectors = MethodVectors(method, base.sizes, 1)
    return Embedding("mean", vectors, features, {"store": "minilm"}, SilentProgress())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Embedding:
    return embedding(tmp_path_factory.mktemp("home"), dict.fromkeys(ROLES, PlainRecipe()))


@pytest.fixture(scope="module")
def theirs() -> SentenceTransformer:
    """Transformer, mean pooling and normalisation, on the same weights."""
    folder = resolve_backbone(BackboneConfig(source="minilm"), "float32", "none").files.folder
    words = Transformer(str(folder), max_seq_length=MAX_LENGTH)
    pooling = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[words, pooling, Normalize()], device="cpu")


def compare(config: Any, ours: Embedding, theirs: SentenceTransformer) -> None:
    """Check that our score is that of mteb on their model."""
    built = build_task(config, "same", config.read())
    found = mteb.evaluate(
        theirs, built, cache=None, co2_tracker=False, show_progress_bar=False
    ).task_results[0]
    mine = evaluate_task(config, "same", ours).metrics
    assert mine["metric"] == built.metadata.main_score
    assert mine["test"] == pytest.approx(found.get_score(), abs=5e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


SHORT = ("retrieval", "classification")
"""With queries and documents, and without. test_mteb_scores.py has the scores of the other kinds."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in SHORT else pytest.mark.deep) for k in KINDS]
)
def test_every_kind_of_task_has_the_score_of_sentence_transformers(
    folder: Path, kind: str, ours: Embedding, theirs: SentenceTransformer
) -> None:
    compare(task(folder, kind), ours, theirs)


def test_vectors_are_those_of_sentence_transformers_also_of_texts_that_are_cut(
    ours: Embedding, theirs: SentenceTransformer
) -> None:
    texts = ["snow melts", "the lake freezes under thin ice . " * 60, "sun"]
    np.testing.assert_allclose(ours(texts, "document"), theirs.encode(texts), atol=2e-6)


WORDS = "Find a sentence on snow and ice"
TEMPLATE = "Instruct: {instruction} Query: "
"""Ends with a space, and `{text}` comes after it."""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "pooled"),
    [
        ("retrieval", "exclude"),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in (
                ("classification", "include"),
                ("retrieval", "include"),
                ("classification", "exclude"),
                ("reranking", "exclude"),
                ("reranking", "include"),
            )
        ),
    ],
)
def test_instructions_have_the_scores_of_mtebs_own_wrapper(
    folder: Path, tmp_path: Path, kind: str, pooled: Any, ours: Embedding
) -> None:
    # Queries alone where there are any, as the wrapper has it without passages.
    form = TEMPLATE + "{text}"
    given = TypeAdapter[Instructions](Instructions).validate_python(
        {"kind": "custom", "others": WORDS, "forms": {"other": {"text": form, "query": form}}}
        | ({"forms": {"Retrieval": {"query": form}}} if kind == "retrieval" else {})
    )
    config = task(folder, kind)
    said = task_instructions(given, "same", config)
    recipes = {
        role: PlainRecipe(instruction=said.get(role, "{text}"), instruction_words=pooled)
        for role in ROLES
    }
    built = build_task(config, "same", config.read())
    theirs = InstructSentenceTransformerModel(
        str(resolve_backbone(BackboneConfig(source="minilm"), "float32", "none").files.folder),
        revision="local",
        device="cpu",
        instruction_template=TEMPLATE,
        max_seq_length=MAX_LENGTH,
        apply_instruction_to_passages=False,
        prompts_dict={"same": WORDS},
        include_prompt=pooled == "include",
    )
    found = mteb.evaluate(theirs, built, cache=None, co2_tracker=False, show_progress_bar=False)
    mine = evaluate_task(config, "same", embedding(tmp_path / "home", recipes))
    plain = evaluate_task(config, "same", ours)
    assert mine.scores != plain.scores
    assert mine.metrics["test"] == pytest.approx(found.task_results[0].get_score(), abs=5e-5)


def first(source: Path, to: Path, n: int) -> pa.Table:
    """Copy the first rows of a file."""
    table = pq.read_table(source).slice(0, n)
    to.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, to)
    return table


def slice_of_data(data: Path, to: Path, name: str) -> None:
    """A part of a folder of the data, small enough for one core."""
    if name == "cranfield":
        # Two of its documents are empty.
        corpus = pq.read_table(data / "corpus.parquet")
        names = corpus["doc_id"].to_pylist()
        rows = [i for i, d in enumerate(names) if i < 60 or d in ("471", "995")]
        assert len(rows) == 62
        to.mkdir(parents=True)
        pq.write_table(corpus.take(rows), to / "corpus.parquet")
        pq.write_table(pq.read_table(data / "queries.parquet"), to / "queries.parquet")
        qrels = pq.read_table(data / "qrels_test.parquet")
        kept = [i for i, d in enumerate(qrels["doc_id"].to_pylist()) if names.index(d) in rows]
        pq.write_table(qrels.take(kept), to / "qrels_test.parquet")
    elif name == "summeval":
        documents = first(data / "docs.parquet", to / "docs.parquet", 8)["doc_id"]
        summaries = pq.read_table(data / "summaries.parquet")
        pq.write_table(
            summaries.filter(pc.is_in(summaries["doc_id"], documents.combine_chunks())),
            to / "summaries.parquet",
        )
    else:
        for path in sorted(data.glob("*.parquet")):
            first(path, to / path.name, 150)


@needs_data
@pytest.mark.night
@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "kind", "fields"),
    [
        ("stsb", "sts", {}),
        ("emotion", "classification", {"samples_per_label": 4}),
        ("glue_mrpc", "pair_classification", {}),
        (
            "twentynewsgroups_titles",
            "clustering",
            {"split": "all", "text": "title", "label": "label_name"},
        ),
        ("cranfield", "retrieval", {}),
        ("wikiqa", "reranking", {"query_id": "qid", "query": "question", "document": "sentence"}),
        ("summeval", "summarization", {}),
    ],
)
def test_slices_of_real_data_have_the_score_of_sentence_transformers(
    tmp_path: Path,
    name: str,
    kind: str,
    fields: dict[str, Any],
    ours: Embedding,
    theirs: SentenceTransformer,
) -> None:
    slice_of_data(DATA / name, tmp_path / kind, name)
    compare(task(tmp_path, kind, **fields), ours, theirs)
