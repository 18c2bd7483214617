"""Predictions of new texts in a file: parquet, csv or jsonl, by its ending."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from permafrost.stages.corpus.texts import TextsOfRows
from permafrost.stages.embed.write import require_place, whole_file
from permafrost.stages.encoder.predicted import Predicted, PredictedClasses
from permafrost.stages.metrics.identified import with_probabilities
from permafrost.storage.errors import InputError
from permafrost.storage.keys import canonical_json


def predictions_of(rows: TextsOfRows, predicted: Predicted) -> pa.Table:
    """One row per text or pair, in order.

    Returns:
        `id` and `text`, and `text_pair` of pairs. Of classes `prediction` (the class' name), `score` (its
        probability) and a column of float32 for each class, see `probability_columns`. Of graded pairs
        `score` in the units of the labels, and `similarity`.
    """
    columns: dict[str, Any] = {"id": rows.ids, "text": pa.array(rows.texts, pa.large_string())}
    if rows.pairs is not None:
        columns["text_pair"] = pa.array(rows.pairs, pa.large_string())
    if not isinstance(predicted, PredictedClasses):
        scores = pa.array(predicted.scores, pa.float64())
        similarities = pa.array(predicted.similarities, pa.float64())
        return pa.table({**columns, "score": scores, "similarity": similarities})
    n = len(predicted.classes)
    columns["prediction"] = pa.array(predicted.names, pa.string())
    scores = predicted.scores
    columns["score"] = pa.nulls(n, pa.float32()) if scores is None else pa.array(scores)
    table = pa.table(columns)
    if predicted.probabilities is None:
        return table
    return with_probabilities(table, predicted.class_names, predicted.probabilities)


def require_predictions_place(path: Path) -> None:
    """Check, before anything is computed, that predictions can be written to `path`.

    Raises:
        InputError: see `require_place`, or the ending is not known.
    """
    require_place(path, "the predictions")
    if path.suffix.lower() not in _WRITERS:
        raise InputError(
            f"the predictions are to be written to {path}, whose ending is {path.suffix or 'missing'}; there "
            f"are {', '.join(_WRITERS)}"
        )


def write_predictions(path: Path, table: pa.Table, facts: Mapping[str, Any]) -> None:
    """Write a table; it appears whole or not at all.

    `facts` is everything that decides the predictions; in parquet it is the metadata `permafrost`, as JSON.
    """
    schema = table.schema.with_metadata({b"permafrost": canonical_json(facts)})
    with whole_file(path) as draft:
        _WRITERS[path.suffix.lower()](table.cast(schema), draft)


def _jsonl(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=4096):
            for row in batch.to_pylist():
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


_WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    ".parquet": pq.write_table,
    ".csv": pa.csv.write_csv,
    ".jsonl": _jsonl,
}
