"""The names that columns usually have, for those that an experiment does not name."""

from collections.abc import Sequence

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

TEXT = ("text", "sentence", "sentences", "content")
CLASS = ("label", "labels", "class", "category", "target")
GRADE = ("score", "label", "labels", "similarity", "similarity_score", "relatedness_score")
BINARY = ("label", "labels", "score", "relevance", "is_duplicate")
FIRST, SECOND = (
    ("text", "sentence1", "text1", "premise", "question1", "sentence_a", "text_a", "sent1"),
    ("text_pair", "sentence2", "text2", "hypothesis", "question2", "sentence_b", "text_b", "sent2"),
)
"""Two texts of a pair, names in the same place belonging together."""

QUERY_ID = ("query_id", "query-id", "qid", "topic")
DOCUMENT_ID = ("doc_id", "corpus-id", "corpus_id", "document_id", "docid", "docno", "did", "pid")
OWN_ID = ("_id", "id")
"""What an id is called in the file of the texts that have it."""
QUERY = ("text", "query", "question")
DOCUMENT = ("text", "document", "passage", "contents", "content", "body")
RELEVANCE = ("score", "relevance", "relevancy", "label", "rel")
ASKED = ("query", "question", "text")
ANSWER = ("document", "passage", "sentence", "answer", "doc")
"""Queries and documents where both stand in one row."""
POSITIVES, NEGATIVES = ("positive", "positives", "pos"), ("negative", "negatives", "neg")
"""A query's answers and other candidates, where a row holds lists of them."""
DOCUMENT_IDS = ("corpus-ids", "corpus_ids", "doc_ids", "document_ids", "docids")
"""The documents of a query, where a row holds a list of them."""
RELEVANCES = (*RELEVANCE, "scores", "labels")

REFERENCES = ("references", "human_summaries", "reference", "human_summary")
SUMMARY = ("summary", "machine_summary", "text")
SUMMARIES = ("machine_summaries", "summaries", "machine_summary")
"""The summaries of a document, where a row holds a list of them."""
RATING = ("relevance", "score", "grade", "rating")


def find_column(
    field: str, given: str, usual: Sequence[str], available: Sequence[str], where: str
) -> str:
    """The column that a field means: of the name given, or with another usual name if that is the default.

    Args:
        field: of the config, for messages.
        given: the field's value.
        usual: its default, then other names, in small letters.
        available: columns of the file.
        where: names the file, for messages.

    Raises:
        InputError: no such column, or several.
    """
    found = [given] if given in available else []
    if not found and given == usual[0]:
        found = [name for name in available if name.casefold() in usual]
    if len(found) == 1 and available.count(found[0]) == 1:
        return found[0]
    columns = f"its columns are {', '.join(map(quoted, available))}"
    if not found:
        also = f" (nor {', '.join(usual[1:])})" if given == usual[0] and len(usual) > 1 else ""
        raise InputError(
            f"{where} has no column {quoted(given)}{also}; {columns}. Write '{field}: NAME' with the one "
            "that is meant"
        )
    if len(found) == 1:
        raise InputError(
            f"{where} has more than one column {quoted(given)}; {columns}. Rename all but one"
        )
    raise InputError(
        f"{where} has {len(found)} columns that could be meant by '{field}': "
        f"{', '.join(map(quoted, found))}; {columns}. Write '{field}: NAME' with the one that is meant"
    )


def find_pair(
    given: tuple[str, str],
    default: tuple[str, str],
    available: Sequence[str],
    where: str,
    fields: tuple[str, str] = ("text", "text_pair"),
) -> tuple[str, str]:
    """The columns of the two texts of a pair; names that are not given must belong together.

    Raises:
        InputError: see `find_column`.
    """
    if given != default or all(name in available for name in default):
        first = _one_side(fields[0], given[0], default[0], FIRST, available, where)
        return first, _one_side(fields[1], given[1], default[1], SECOND, available, where)
    lower = {name.casefold(): name for name in available}
    found = [
        (lower[a], lower[b])
        for a, b in zip(FIRST, SECOND, strict=True)
        if a in lower and b in lower
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{where} has {len(found)} pairs of columns that could be meant: "
            f"{'; '.join(', '.join(map(quoted, pair)) for pair in found)}. Write '{fields[0]}: NAME' and "
            f"'{fields[1]}: NAME' with those that are meant"
        )
    first = _one_side(fields[0], given[0], default[0], (), available, where)
    return first, _one_side(fields[1], given[1], default[1], (), available, where)


def _one_side(
    field: str,
    given: str,
    default: str,
    others: Sequence[str],
    available: Sequence[str],
    where: str,
) -> str:
    return find_column(field, given, (default, *others), available, where)


def require_columns(available: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Check that each wanted column is there exactly once.

    Raises:
        InputError: a column is missing or ambiguous.
    """
    for name in wanted:
        if available.count(name) != 1:
            problem = "no column" if name not in available else "more than one column"
            raise InputError(
                f"{where} has {problem} {quoted(name)}; its columns are "
                f"{_listed(available)}. Name one of these in the task's text, "
                "text_pair, negative or label (on the command line: FILE::COLUMN)"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
    return ", ".join(map(quoted, names[:20])) + more
