"""What mteb sees of an embedding: roles, identity, order, repeated and blank texts."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from mteb.models.models_protocols import EncoderProtocol
from mteb.types import PromptType

from permafrost.stages.embed import Features
from permafrost.stages.mteb_evaluation import Role
from permafrost.stages.mteb_evaluation.encoder import PermafrostEncoder
from permafrost.storage.errors import InputError
from tests.stages.mteb_evaluation.word_vectors import WordStates, embedding, mean_of_words


def test_it_follows_the_protocol_and_its_revision_is_its_identity() -> None:
    first, second = embedding(), embedding(normalise="l2")
    encoders = [PermafrostEncoder(e, "GLOT, τ = 0.6", e.digest) for e in (first, second)]
    assert isinstance(encoders[0], EncoderProtocol)
    metas = [e.mteb_model_meta for e in encoders]
    assert [m.name for m in metas] == ["permafrost/GLOT-0.6"] * 2
    assert [m.revision for m in metas] == [first.digest, second.digest]
    assert first.digest != second.digest
    assert embedding().digest == first.digest


@pytest.mark.parametrize(
    ("prompt_type", "role"),
    [(None, "text"), (PromptType.query, "query"), (PromptType.document, "document")],
)
def test_the_type_of_prompt_is_the_role(prompt_type: PromptType | None, role: str) -> None:
    states = WordStates()
    made = embedding(states)
    batches = [{"text": ["snow ice", "lake"]}, {"text": ["snow ice", "river"]}]
    vectors = PermafrostEncoder(made, "m", made.digest).encode(
        batches, task_metadata=None, hf_split="test", hf_subset="en", prompt_type=prompt_type
    )
    expected = mean_of_words(["snow ice", "lake", "snow ice", "river"])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert states.asked == {role: ["snow ice", "lake", "river"]}, "equal texts are asked for once"


def test_a_text_that_is_query_and_document_has_a_vector_for_each_role() -> None:
    plain = WordStates()

    def prompted(role: Role, texts: Mapping[str, str]) -> Sequence[Features]:
        """Queries are read behind a prompt."""
        before = "find " if role == "query" else ""
        return plain(role, {digest: before + text for digest, text in texts.items()})

    made = embedding(prompted)
    encoder = PermafrostEncoder(made, "m", made.digest)
    batches = [{"text": ["snow ice", "lake"]}]
    for prompt_type, texts in (
        (PromptType.query, ["find snow ice", "find lake"]),
        (PromptType.document, ["snow ice", "lake"]),
        (PromptType.query, ["find snow ice", "find lake"]),
    ):
        found = encoder.encode(
            batches, task_metadata=None, hf_split="test", hf_subset="en", prompt_type=prompt_type
        )
        np.testing.assert_allclose(found, mean_of_words(texts), atol=1e-6)


def test_a_blank_text_has_a_vector_of_zeros() -> None:
    vectors = embedding(normalise="l2")(["snow", " \n", "ice", ""], "document")
    assert vectors.shape[0] == 4
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1, 0], atol=1e-6)


def test_nothing_but_blank_texts_is_an_error() -> None:
    with pytest.raises(InputError, match="all 2 texts of the role 'query' are blank"):
        embedding()(["", " "], "query")
