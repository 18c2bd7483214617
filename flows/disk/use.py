"""What a home takes on disk: by place, backbone, recipe, corpus or array. Every file is counted once."""

from pathlib import Path
from typing import Literal, get_args

from permafrost.flows.disk.parts import Use, beside, ordered, part_of, store_labels, summed
from permafrost.storage.disk_use import files_of_home
from permafrost.storage.progress import Progress

By = Literal["place", "backbone", "recipe", "corpus", "array"]
GROUPINGS: tuple[By, ...] = get_args(By)


def disk_use(home: Path, by: By, progress: Progress) -> list[Use]:
    """What the files of a home take, the largest first.

    Raises:
        CorruptDataError: by corpus: a table of texts is damaged.
    """
    files = [(part_of(file.path), file) for file in files_of_home(home)]
    if by == "corpus":
        # Imported here: it needs Arrow, a plain listing does not.
        from permafrost.flows.disk.by_corpus import by_corpus

        return ordered(by_corpus(home, files, progress))
    if by == "place":
        return ordered(summed(files, lambda p: (p.room, p.what)))
    if by == "array":
        return ordered(summed(files, lambda p: ("", p.what if p.store else beside(p))))
    labels = store_labels(home, by, {p.store for p, _ in files if p.store is not None})
    return ordered(
        summed(files, lambda p: ("", labels[p.store] if p.store is not None else beside(p)))
    )
