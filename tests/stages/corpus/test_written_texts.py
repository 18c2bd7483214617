"""Texts that an experiment has itself."""

import pytest
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.source import CorpusConfig

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)


def test_texts_are_a_corpus_in_their_order_each_once() -> None:
    texts = ["A person is riding a horse", " two ", "A person is riding a horse"]
    source = ADAPTER.validate_python({"kind": "texts", "texts": texts})
    corpus = source.build()
    assert [*corpus.texts] == texts[:2]
    assert (corpus.task, corpus.splits, corpus.label_names) == ("unlabelled", ("test",), ())
    assert source.facts() == {"kind": "texts", "texts": texts}


@pytest.mark.parametrize("texts", [[], [" "], ["a", ""]])
def test_no_texts_and_blank_ones_are_refused(texts: list[str]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python({"kind": "texts", "texts": texts})
