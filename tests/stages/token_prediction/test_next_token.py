"""The next-token probe on stored features of tiny decoders."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from permafrost.stages.corpus.columns import Unlabelled
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.sources.files import FilesCorpus
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.embed.aggregate import mean_rows
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.recipes import parse_recipe
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.stages.extraction.unembedding import read_unembedding
from permafrost.stages.token_prediction import (
    LinearNextToken,
    NextTokenConfig,
    NextTokenScores,
    OwnNextToken,
    TokenFrequencies,
    next_token,
    probe_next_token,
)
from permafrost.stages.token_prediction.stored_tokens import prefix_means
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from tests.stages.extraction.tiny_models import TEXTS, save_model
from tests.stages.token_prediction.conftest import Decoder

Decoders = Callable[[str], Decoder]
QUIET = SilentProgress()
CYCLE = "abcdefgh"


def cycles(n: int, seed: int) -> list[str]:
    """Letters of which each has one successor."""
    rng = np.random.default_rng(seed)
    return [(CYCLE * 9)[i : i + int(rng.integers(9, 40))] for i in rng.integers(0, 8, n)]


SPLITS = {"train": cycles(40, 0), "dev": cycles(10, 1), "test": [*cycles(10, 2), *TEXTS[:2]]}


@dataclass(frozen=True)
class Extracted:
    corpus: Corpus
    features: StoredFeatures
    target: ExtractTarget
    decoder: Decoder

    def probe(self, config: NextTokenConfig) -> NextTokenScores:
        files, recipe = self.target.files, self.target.recipe
        return probe_next_token(config, self.features, recipe, files, self.corpus, QUIET)


def corpus_of(folder: Path, splits: dict[str, Sequence[str]]) -> Corpus:
    files = {}
    for split, texts in splits.items():
        files[split] = str(folder / f"{split}.parquet")
        pq.write_table(pa.table({"text": list(texts)}), files[split])
    return FilesCorpus(files=files, task=Unlabelled()).build()


def extracted(decoder: Decoder, folder: Path, splits: dict[str, Sequence[str]]) -> Extracted:
    corpus = corpus_of(folder, splits)
    config = ExtractConfig(
        backbone=BackboneConfig(source=str(decoder.folder)),
        capture=parse_capture("hidden=all,values=all"),
        store_dtype="float32",
    )
    target = resolve_target(config)
    report = extract(
        target, folder, corpus.texts, corpus.digests, ExtractRuntime(device="cpu"), QUIET
    )
    features = StoredFeatures(report.store, target.sizes, corpus.digests)
    return Extracted(corpus, features, target, decoder)


@pytest.fixture(scope="module")
def llama(decoder: Decoders, tmp_path_factory: pytest.TempPathFactory) -> Extracted:
    return extracted(decoder("llama"), tmp_path_factory.mktemp("home"), SPLITS)


def rows_of(scores: NextTokenScores) -> dict[str, dict[str, float]]:
    return {row["layer"]: row for row in scores.table.to_pylist()}


@pytest.mark.few(1)
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gpt_neox"])
def test_the_own_prediction_has_the_language_models_loss(
    decoder: Decoders, model_type: str, tmp_path: Path
) -> None:
    """Relation 47, from stored states and the unembedding alone; 1e-4: eager against fused attention."""
    found = extracted(decoder(model_type), tmp_path, SPLITS)
    losses: list[float] = []
    reciprocal: list[float] = []
    # A text of train does not count for test.
    test = [t for t in dict.fromkeys(SPLITS["test"]) if t not in SPLITS["train"] + SPLITS["dev"]]
    for text in test:
        ids = torch.tensor(found.decoder.backbone.tokenizer(text)["input_ids"])
        with torch.no_grad():
            logits = found.decoder.whole(input_ids=ids[None]).logits[0, :-1]
        shares = (logits / 0.7).log_softmax(-1)
        for t, target in enumerate(ids[1:].tolist()):
            losses.append(-float(shares[t, target]))
            rank = int((logits[t] >= logits[t, target]).sum())
            reciprocal.append(1 / rank if rank <= 100 else 0.0)
    (row,) = found.probe(OwnNextToken(temperature=0.7)).table.to_pylist()
    assert row["layer"] == "final"
    assert row["n"] == len(losses)
    assert row["nll"] == pytest.approx(np.mean(losses), rel=1e-4)
    # One rank that rounding moves changes the mean by less than half of 1 / n.
    assert row["mrr"] == pytest.approx(np.mean(reciprocal), abs=0.5 / len(losses))


def test_frequencies_are_those_of_train(llama: Extracted) -> None:
    ids = {
        split: [llama.decoder.backbone.tokenizer(t)["input_ids"] for t in dict.fromkeys(texts)]
        for split, texts in SPLITS.items()
    }
    earlier = [*ids["train"], *ids["dev"]]
    counts = Counter(token for row in ids["train"] for token in row[1:])
    total = sum(counts.values()) + 320
    losses, hits, reciprocal = [], [], []
    for row in ids["test"]:
        for token in row[1:] if row not in earlier else ():
            losses.append(-np.log((counts[token] + 1) / total))
            rank = sum(counts[other] >= counts[token] for other in range(320))
            hits.append(rank == 1)
            reciprocal.append(1 / rank if rank <= 100 else 0)
    found = rows_of(llama.probe(TokenFrequencies()))
    assert list(found) == ["0", "final"]
    for row in found.values():
        assert row["n"] == len(losses)
        assert row["nll"] == pytest.approx(np.mean(losses), rel=1e-9)
        assert row["accuracy"] == pytest.approx(np.mean(hits), abs=1e-12)
        assert row["mrr"] == pytest.approx(np.mean(reciprocal), abs=1e-12)


def test_means_of_prefixes_are_those_of_a_loop(llama: Extracted) -> None:
    rows = Ragged.from_arrays(
        [np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32) for n in (1, 5, 2)]
    )
    found = prefix_means(rows)
    expected = [sum(text[: t + 1]) / (t + 1) for text in rows for t in range(len(text))]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    # The whole text's is Value Aggregation's.
    np.testing.assert_allclose(found[rows.offsets[1:] - 1], mean_rows(rows), rtol=1e-6, atol=1e-7)
    config = LinearNextToken(of="va", layers="2-3", max_epochs=1)
    assert set(rows_of(llama.probe(config))) == {"2", "3"}


@pytest.mark.few(1)
@pytest.mark.parametrize("of", ["hidden", "values"])
def test_a_successor_is_read_off_the_token_itself(
    decoder: Decoders, of: str, tmp_path: Path
) -> None:
    """Every letter has one successor, and after two steps one; their frequencies say nothing."""
    splits = {**SPLITS, "test": cycles(10, 2)}
    found = extracted(decoder("llama"), tmp_path, splits)
    for offset in (1, 2):
        first = "0" if of == "hidden" else "1"
        config = LinearNextToken(
            of=of, layers=first, lr=0.03, max_epochs=40, patience=40, offset=offset
        )
        rows = rows_of(found.probe(config))
        # Only what follows <s> is open: one token per text, and two with offset 2.
        n_texts = len(set(splits["test"]) - set(splits["train"]) - set(splits["dev"]))
        assert rows[first]["accuracy"] >= 1 - n_texts / rows[first]["n"]
        known = rows_of(found.probe(TokenFrequencies(offset=offset)))["0"]
        assert known["accuracy"] < 0.3
        assert rows[first]["nll"] < known["nll"] - 1


@pytest.mark.deep
def test_a_softmax_of_its_own_reads_the_successor_too(decoder: Decoders, tmp_path: Path) -> None:
    splits: dict[str, Sequence[str]] = {**SPLITS, "test": cycles(10, 2)}
    found = extracted(decoder("llama"), tmp_path, splits)
    asked = {"layers": "0", "lr": 0.03, "max_epochs": 40, "patience": 40}
    own, mapped = (
        rows_of(found.probe(LinearNextToken.model_validate({**asked, "softmax_keys": keys})))["0"]
        for keys in ("trained", "unembedding")
    )
    n_texts = len(set(splits["test"]) - set(splits["train"]) - set(splits["dev"]))
    assert own["accuracy"] >= 1 - n_texts / own["n"]
    assert own["n"] == mapped["n"]
    assert own["nll"] != mapped["nll"]


def test_a_test_text_that_is_in_train_is_not_asked(decoder: Decoders, tmp_path: Path) -> None:
    splits = {
        "train": ["abcdefgh", "bcdefgha"],
        "dev": ["cdefghab", "abcdefgh"],
        "test": ["bcdefgha", "defghabc", "cdefghab"],
    }
    found = extracted(decoder("llama"), tmp_path, splits)
    row = rows_of(found.probe(TokenFrequencies()))["0"]
    assert row["n"] == len("defghabc")


@pytest.mark.parametrize(
    ("of", "layers"), [("hidden", ["0", "1", "2", "3", "final"]), ("values", ["1", "2", "3"])]
)
def test_all_layers_are_those_of_the_store(llama: Extracted, of: str, layers: list[str]) -> None:
    config = LinearNextToken(of=of, max_epochs=1, n_tokens=20)
    assert list(rows_of(llama.probe(config))) == layers


def test_no_more_tokens_than_asked_for(llama: Extracted) -> None:
    for n_tokens in (2, 13, 100):
        config = LinearNextToken(layers="1", max_epochs=1, n_tokens=n_tokens)
        assert rows_of(llama.probe(config))["1"]["n"] == n_tokens
    other = LinearNextToken(layers="1", max_epochs=1, n_tokens=100, seed=1)
    first = LinearNextToken(layers="1", max_epochs=1, n_tokens=100)
    assert rows_of(llama.probe(other))["1"]["nll"] != rows_of(llama.probe(first))["1"]["nll"]
    again = llama.probe(first)
    assert again.table.equals(llama.probe(first).table)


def test_a_trained_map_is_scored_by_the_loss_that_it_was_trained_on(
    llama: Extracted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softcap changes what the model itself predicts, and no map of ours."""
    linear, own = LinearNextToken(layers="1", max_epochs=1, n_tokens=50), OwnNextToken(n_tokens=50)
    free = [llama.probe(config).table for config in (linear, own)]
    monkeypatch.setattr(
        next_token, "read_unembedding", lambda files: replace(read_unembedding(files), softcap=0.01)
    )
    capped = [llama.probe(config).table for config in (linear, own)]
    assert free[0] == capped[0]
    assert free[1].column("nll") != capped[1].column("nll")


def test_texts_too_short_to_be_asked_do_not_use_up_the_number(
    decoder: Decoders, tmp_path: Path
) -> None:
    splits = {
        s: [*(f"{s[0]}{i}" for i in range(30)), cycles(1, k)[0] * 2] for k, s in enumerate(SPLITS)
    }
    found = extracted(decoder("llama"), tmp_path, splits)
    config = LinearNextToken(layers="1", offset=5, n_tokens=10, max_epochs=1)
    assert rows_of(found.probe(config))["1"]["n"] == 10


def test_scores_survive_a_folder_and_become_curves(llama: Extracted, tmp_path: Path) -> None:
    scores = llama.probe(LinearNextToken(layers="1,2,final", max_epochs=1, n_tokens=50))
    scores.save(tmp_path)
    loaded = NextTokenScores.load(tmp_path)
    assert loaded.table.equals(scores.table)
    assert loaded.curves == scores.curves
    drawn = {(p.measure, p.at, p.x): p.value for p in scores.curves.points}
    assert drawn["accuracy", "final", 4.0] == rows_of(scores)["final"]["accuracy"]
    assert drawn["MRR@100", "2", 2.0] == rows_of(scores)["2"]["mrr"]
    assert drawn["loss, nats per token", "1", 1.0] == rows_of(scores)["1"]["nll"]
    assert len(drawn) == 9


def test_what_cannot_be_asked_is_refused(
    llama: Extracted, decoder: Decoders, tmp_path: Path
) -> None:
    config = LinearNextToken(layers="1")
    echo = parse_recipe("echo")
    with pytest.raises(InputError, match="use plain or a template"):
        probe_next_token(config, llama.features, echo, llama.target.files, llama.corpus, QUIET)
    (tmp_path / "bert").mkdir()
    encoder = Decoder(
        save_model("bert", tmp_path / "bert"), llama.decoder.backbone, llama.decoder.whole
    )
    with pytest.raises(InputError, match="use a decoder"):
        extracted(encoder, tmp_path / "bert", {"train": TEXTS, "test": TEXTS}).probe(config)
    (tmp_path / "two").mkdir()
    without_dev = extracted(decoder("llama"), tmp_path / "two", {"train": TEXTS, "test": TEXTS})
    with pytest.raises(InputError, match="has no 'dev', only train, test"):
        without_dev.probe(config)
    with pytest.raises(InputError, match="a token 70 tokens after"):
        llama.probe(LinearNextToken(layers="1", offset=70))
    with pytest.raises(InputError, match="hidden=9"):
        llama.probe(LinearNextToken(layers="9"))
