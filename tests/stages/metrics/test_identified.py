"""Predictions that name their classes and join their corpus."""

import numpy as np
import pyarrow as pa
import pytest

from permafrost.stages.metrics.identified import identified, probability_columns
from permafrost.stages.metrics.predictions import predictions_table


@pytest.mark.parametrize(
    ("classes", "columns"),
    [
        (("no", "yes"), ["probability_no", "probability_yes"]),
        (("0", "1", "-1"), ["probability_0", "probability_1", "probability__1"]),
        (("très bien", "a.b,c"), ["probability_très_bien", "probability_a_b_c"]),
        (("Yes", "yes"), ["probability_0_Yes", "probability_1_yes"]),
        (
            ("a b", "a_b", "0_a_b"),
            ["probability_0_a_b", "probability_1_a_b", "probability_2_0_a_b"],
        ),
    ],
)
def test_every_class_has_a_column_that_no_other_has(
    classes: tuple[str, ...], columns: list[str]
) -> None:
    assert probability_columns(classes) == columns


def test_rows_join_the_examples_and_texts_of_their_corpus() -> None:
    examples = pa.table({"split": ["test", "train", "dev", "test", "dev"]})
    digests = [f"{i:064x}" for i in range(9)]
    dev, test = np.array([[3, 4], [5, 6]]), np.array([[7, 8], [1, 2]])
    labels, answers = np.array([0, 1]), np.array([1, 1])
    table = pa.concat_tables(
        predictions_table(split, list(sides), labels, answers)
        for split, sides in (("dev", dev), ("test", test))
    )
    shares = np.array([[0.25, 0.75], [0.5, 0.5], [0.0, 1.0], [0.125, 0.875]])
    found = identified(table, examples, digests, ("no", "yes"), shares)
    # Of each split, the rows in which the corpus has it.
    assert found["example"].to_pylist() == [2, 4, 0, 3]
    assert found["digest"].to_pylist() == [digests[i] for i in (3, 4, 7, 8)]
    assert found["digest_b"].to_pylist() == [digests[i] for i in (5, 6, 1, 2)]
    assert found["label_name"].to_pylist() == ["no", "yes"] * 2
    assert found["prediction_name"].to_pylist() == ["yes"] * 4
    assert found["probability_yes"].to_pylist() == [0.75, 0.5, 1.0, 0.875]
    assert found.schema.field("probability_no").type == pa.float32()
    assert found.schema.field("probability_no").metadata == {b"class": b"no"}
