"""Relevance of nodes: cosines and likelihoods of tiny models, against one pair at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import normalizers
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from permafrost.stages.graphs.relevance import RELEVANCES, Relevance
from permafrost.stages.graphs.relevances.none import NoRelevance
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.tiny_models import (
    CONFIGS,
    byte_tokenizer,
    save_model,
    word_tokenizer,
)
from tests.stages.graphs.small_linked import built, questions

LABELS = ["deep lake", "ice", "snow", "sun", "warm wind"]
TEXTS = ["the lake freezes under ice", "a warm sun"]
NODES = [np.array([0, 1, 4]), np.array([], np.int64), np.array([3, 1])]
ASKED = [TEXTS[0], "never", TEXTS[1]]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its head."""
    folder = tmp_path_factory.mktemp("decoder")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(CONFIGS["llama"]()).save_pretrained(folder)
    byte_tokenizer(adds_bos=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its head for masked tokens."""
    folder = tmp_path_factory.mktemp("encoder")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForMaskedLM.from_config(CONFIGS["bert"]()).save_pretrained(folder)
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    tokenizer.save_pretrained(folder)
    return folder


def relevance(kind: str, folder: Path, **backbone: Any) -> Relevance:
    return RELEVANCES.validate({"kind": kind, "backbone": {"source": str(folder), **backbone}})


def scores(config: Relevance, asked: list[str] = ASKED, nodes: Any = None) -> list[np.ndarray]:
    return config.scores(LABELS, asked, NODES if nodes is None else nodes, SilentProgress(), "cpu")


def test_without_relevance_every_node_scores_zero() -> None:
    assert [s.tolist() for s in scores(NoRelevance())] == [[0, 0, 0], [], [0, 0]]
    assert NoRelevance().facts() == {"kind": "none"}


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_cosines_are_those_of_mean_states(
    decoder: Path, encoder: Path, family: str, tmp_path: Path
) -> None:
    folder = save_model(family, tmp_path)
    from transformers import AutoModel

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def vector(text: str) -> torch.Tensor:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            return model.eval()(input_ids=ids).last_hidden_state[0].mean(0)

    found = scores(relevance("cosine", folder))
    for text, nodes, values in zip(ASKED, NODES, found, strict=True):
        wanted = [torch.cosine_similarity(vector(text), vector(LABELS[n]), 0) for n in nodes]
        assert np.allclose(values, [float(w) for w in wanted], atol=2e-6)
        assert values.dtype == np.float32
    assert scores(relevance("cosine", folder), [], []) == []


def test_a_decoders_likelihood_is_of_the_labels_tokens_behind_the_text(decoder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(decoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    for text, nodes, values in zip(
        ASKED, NODES, scores(relevance("likelihood", decoder)), strict=True
    ):
        for node, value in zip(nodes, values, strict=True):
            both = tokenizer(f"{text} {LABELS[node]}", return_tensors="pt")["input_ids"]
            n_text = len(tokenizer(text)["input_ids"])
            with torch.no_grad():
                log_p = model(input_ids=both).logits[0].log_softmax(1)
            own = range(n_text, both.shape[1])
            wanted = np.mean([float(log_p[i - 1, both[0, i]]) for i in own])
            assert value == pytest.approx(wanted, abs=1e-5)


def test_an_encoders_likelihood_masks_one_token_of_the_label_at_a_time(encoder: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(encoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    (found,) = scores(relevance("likelihood", encoder), ["the lake is"], [np.array([0, 2])])
    for node, value in zip((0, 2), found, strict=True):
        ids = tokenizer(f"the lake is {LABELS[node]}", return_tensors="pt")["input_ids"]
        total = []
        for at in range(4, 4 + len(LABELS[node].split())):
            masked = ids.clone()
            masked[0, at] = tokenizer.mask_token_id
            with torch.no_grad():
                log_p = model(input_ids=masked).logits[0, at].log_softmax(0)
            total.append(float(log_p[ids[0, at]]))
        assert value == pytest.approx(np.mean(total), abs=1e-5)


def test_a_label_without_tokens_is_as_relevant_as_the_least(encoder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\N{SNOWMAN}", "")
    AutoModelForMaskedLM.from_pretrained(encoder).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = relevance("likelihood", tmp_path)

    def of(*labels: str) -> list[float]:
        (found,) = model.scores(
            labels, ["the lake is"], [np.arange(len(labels))], SilentProgress(), "cpu"
        )
        return found.tolist()

    known = of(*LABELS[:3])
    assert of("\N{SNOWMAN}", *LABELS[:3]) == pytest.approx([min(known), *known])
    assert len(set(known)) == 3
    assert of("\N{SNOWMAN}") == [0]


def test_a_model_that_gives_no_number_is_refused_not_taken_for_a_label_without_tokens(
    decoder: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(decoder)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    model.save_pretrained(tmp_path / "damaged")
    AutoTokenizer.from_pretrained(decoder).save_pretrained(tmp_path / "damaged")
    config = {"kind": "likelihood", "backbone": {"source": str(tmp_path / "damaged")}}
    with pytest.raises(InputError, match=r"'likelihood' gives the node .* the score nan .* finite"):
        built(questions(tmp_path, node_relevance=config))


def test_of_a_text_that_is_too_long_the_beginning_goes_not_the_label(decoder: Path) -> None:
    # <s> and 12 more tokens, all of which the two have in common.
    short = relevance("likelihood", decoder, max_length=13)
    texts = ["sun sun sun sun snow ice ", "never mind the snow ice "]
    one, two = scores(short, texts, [np.array([2]), np.array([2])])
    assert one == two
    whole = scores(relevance("likelihood", decoder), texts, [np.array([2]), np.array([2])])
    assert whole[0] != whole[1]


def test_models_that_cannot_score_are_refused(decoder: Path, encoder: Path, tmp_path: Path) -> None:
    headless = save_model("bert", tmp_path / "headless")
    with pytest.raises(InputError, match=r"lacks .* weights of its language model head"):
        scores(relevance("likelihood", headless))
    word_tokenizer().save_pretrained(tmp_path / "unmasked")
    AutoModelForMaskedLM.from_pretrained(encoder).save_pretrained(tmp_path / "unmasked")
    with pytest.raises(InputError, match="has no mask token"):
        scores(relevance("likelihood", tmp_path / "unmasked"))
    with pytest.raises(InputError, match="does not exist"):
        relevance("cosine", tmp_path / "none").facts()


def test_graphs_are_cut_by_relevance_and_keep_it(decoder: Path, tmp_path: Path) -> None:
    config = {"kind": "cosine", "backbone": {"source": str(decoder)}}
    source = questions(tmp_path, node_relevance=config, max_nodes=5)
    assert source.facts()["node_relevance"]["backbone"]["weights"]
    corpus = built(source)
    rows = corpus.graphs.nodes_of(0)
    labels = ["", *(corpus.labels[int(n)] for n in corpus.graphs.node_label[rows][1:])]
    values = dict(zip(labels, corpus.graphs.node_relevance[rows].tolist(), strict=True))
    (found,) = RELEVANCES.validate(config).scores(
        ["bird", "dog", "tree", "animal", "park"],
        [corpus.texts[0]],
        [np.arange(5)],
        SilentProgress(),
        "cpu",
    )
    best = "animal" if found[3] > found[4] else "park"
    assert set(labels) == {"", "bird", "dog", "tree", best}, "of the unlinked ones, the better"
    assert values[""] == 0
    assert values[best] == pytest.approx(max(found[3:]), abs=1e-6)
    linked = [values[label] for label in labels[1:4]]
    assert linked == sorted(linked, reverse=True)
