"""Usual names of columns, for columns that an experiment does not name."""

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
"""The two texts of a pair; names at the same position belong together."""

QUERY_ID = ("query_id", "query-id", "qid", "topic")
DOCUMENT_ID = ("doc_id", "corpus-id", "corpus_id", "document_id", "docid", "docno", "did", "pid")
OWN_ID = ("_id", "id")
"""Names of the id in the file of the texts it identifies."""
QUERY = ("text", "query", "question")
DOCUMENT = ("text", "document", "passage", "contents", "content", "body")
RELEVANCE = ("score", "relevance", "relevancy", "label", "rel")
ASKED = ("query", "question", "text")
ANSWER = ("document", "passage", "sentence", "answer", "doc")
"""Queries and documents that share a row."""
POSITIVES, NEGATIVES = ("positive", "positives", "pos"), ("negative", "negatives", "neg")
"""Lists of a query's answers and of its other candidates."""
DOCUMENT_IDS = ("corpus-ids", "corpus_ids", "doc_ids", "document_ids", "docids")
"""Lists of a query's documents."""
RELEVANCES = (*RELEVANCE, "scores", "labels")

REFERENCES = ("references", "human_summaries", "reference", "human_summary")
SUMMARY = ("summary", "machine_summary", "text")
SUMMARIES = ("machine_summaries", "summaries", "machine_summary")
"""Lists of a document's summaries."""
RATING = ("relevance", "score", "grade", "rating")


def find_column(
    field: str,
    given: str,
    usual: Sequence[str],
    available: Sequence[str],
    where: str,
    advice: str = "",
) -> str:
    """The column that a field refers to: the one given, or, for the default, one with another usual name.

    Args:
        field: of the config, for messages.
        given: the field's value.
        usual: its default, then other names, in lower case.
        available: columns of the file.
        where: names the file, for messages.
        advice: how a column is named, as a sentence without its full stop; by default with the field.

    Raises:
        InputError: there is no such column, or there are several.
    """
    advice = advice or f"Write '{field}: NAME' with the one that is meant"
    matches = [given] if given in available else []
    if not matches and given == usual[0]:
        matches = [name for name in available if name.casefold() in usual]
    if len(matches) == 1 and available.count(matches[0]) == 1:
        return matches[0]
    columns = f"its columns are {', '.join(map(quoted, available))}"
    if not matches:
        also = f" (nor {', '.join(usual[1:])})" if given == usual[0] and len(usual) > 1 else ""
        raise InputError(f"{where} has no column {quoted(given)}{also}; {columns}. {advice}")
    if len(matches) == 1:
        raise InputError(
            f"{where} has more than one column {quoted(given)}; {columns}. Rename all but one"
        )
    raise InputError(
        f"{where} has {len(matches)} columns that could be meant by '{field}': "
        f"{', '.join(map(quoted, matches))}; {columns}. {advice}"
    )


def find_pair(
    given: tuple[str, str],
    default: tuple[str, str],
    available: Sequence[str],
    where: str,
    fields: tuple[str, str] = ("text", "text_pair"),
) -> tuple[str, str]:
    """The columns of the two texts of a pair; if no names are given, the usual names must belong together.

    Raises:
        InputError: see `find_column`.
    """
    if given != default or all(name in available for name in default):
        first = _one_side(fields[0], given[0], default[0], FIRST, available, where)
        return first, _one_side(fields[1], given[1], default[1], SECOND, available, where)
    lower = {name.casefold(): name for name in available}
    matches = [
        (lower[a], lower[b])
        for a, b in zip(FIRST, SECOND, strict=True)
        if a in lower and b in lower
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(
            f"{where} has {len(matches)} pairs of columns that could be meant: "
            f"{'; '.join(', '.join(map(quoted, pair)) for pair in matches)}. Write '{fields[0]}: NAME' and "
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


CHOSEN_BY_FIELDS = (
    "Name one of these in the task's text, text_pair, negative or label (on the command line: "
    "FILE::COLUMN, --text-pair and --id)"
)


def require_columns(
    available: Sequence[str], wanted: Sequence[str], where: str, advice: str = CHOSEN_BY_FIELDS
) -> None:
    """Check that each wanted column is there exactly once.

    Args:
        available: columns of the file.
        wanted: those to be read.
        where: names the file, for messages.
        advice: what to do about one that is not there, as a sentence without its full stop.

    Raises:
        InputError: a column is missing or ambiguous.
    """
    for name in wanted:
        if available.count(name) != 1:
            problem = "no column" if name not in available else "more than one column"
            raise InputError(
                f"{where} has {problem} {quoted(name)}; its columns are {_listed(available)}. {advice}"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
    return ", ".join(map(quoted, names[:20])) + more
