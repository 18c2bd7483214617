"""The names that columns and files usually have, for those that an experiment does not name."""

import glob
from collections.abc import Sequence
from pathlib import Path

from permafrost.stages.corpus.shards import files_of_pattern, shards_of
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

TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
"""Extensions of files with columns."""
_LAYOUTS = (
    "{0}",
    "data/{0}",
    "{0}-00000-of-00001",
    "data/{0}-00000-of-00001",
    "{0}/{0}-00000-of-00001",
)
"""Where a folder keeps a file of a name: by itself, or as datasets of the hub have it."""
_SHARDED = ("{0}", "data/{0}", "{0}/{0}")
"""Where it keeps one in shards, `NAME-00000-of-00002` and so on."""


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


def find_file(
    folder: Path, names: Sequence[str], field: str, extensions: Sequence[str] = TABLES
) -> Path:
    """As `look_for`.

    Raises:
        InputError: no such file, or several of one name.
    """
    if (found := look_for(folder, names, field, extensions)) is not None:
        return found
    raise InputError(
        f"there is no file {folder / names[0]}{extensions[0]} (nor with {', '.join(extensions[1:])}"
        f"{''.join(f', nor {name}' for name in names[1:])}); {_listing(folder)}. Write '{field}: NAME' with "
        f"the one that is meant; relative paths count from the working folder {Path.cwd()}"
    )


def look_for(
    folder: Path, names: Sequence[str], field: str, extensions: Sequence[str] = TABLES
) -> Path | None:
    """The file of a folder that has one of these names: with its extension, or without; None without one.

    The first name of which there is a file counts. A name may be a pattern (`data/test-*.parquet`); what lies
    in several shards is the pattern of these.

    Raises:
        InputError: several of one name, or a shard is missing.
    """
    for name in names:
        given = folder / name
        if given.suffix.lower() in extensions and (_is_file(given) or _fits_files(given)):
            return given
        found = [
            path
            for layout in _LAYOUTS
            for extension in extensions
            if _is_file(path := folder / f"{layout.format(name)}{extension}")
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            found = [
                shards
                for layout in _SHARDED
                for extension in extensions
                if (shards := shards_of(folder / layout.format(name), extension))
            ]
            if len(found) == 1:
                return found[0]
        if found:
            raise InputError(
                f"{folder} has several files for {field}: "
                f"{', '.join(str(p.relative_to(folder)) for p in found)}; write one of them with its "
                f"extension, '{field}: {found[0].relative_to(folder)}', or remove the others"
            )
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the file system allows
        return False


def _fits_files(pattern: Path) -> bool:
    """Whether a pattern in a folder, however that is called, fits any file."""
    return glob.has_magic(pattern.name) and bool(files_of_pattern(pattern))


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder"
    # Two levels: judgements lie in a folder of their own.
    names = sorted(
        str(p.relative_to(folder)) for p in (*folder.glob("*"), *folder.glob("*/*")) if p.is_file()
    )
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (
        f"the folder holds {', '.join(names[:12])}{more}" if names else "the folder holds no files"
    )
