"""Whether plug-ins are what they were when something was trained with them."""

from collections.abc import Mapping

from permafrost.stages.plugins import classes, in_file, look_anew, origin_of, packages
from permafrost.storage.errors import InputError
from permafrost.storage.fingerprint import CodeFingerprint, fingerprint

_OURS = __name__.partition(".")[0]


def plugin_code(code: Mapping[str, str]) -> dict[str, str]:
    """Of the definitions in a key, those that are not ours."""
    return {
        entry: sha
        for entry, sha in code.items()
        if entry.partition(":")[0].partition(".")[0] != _OURS
    }


def require_same_code(name: str, trained: Mapping[str, str]) -> None:
    """For what is to be used again.

    Definitions go by their names in files (`in_file`) where their modules are not found.

    Args:
        name: what was trained, for messages.
        trained: definitions in its key, with their digests.

    Raises:
        InputError: a plug-in with which it was trained has been edited since, or is not among those that are
            in use here; or a module beside one was edited and not reloaded.
    """
    look_anew()
    own, given = plugin_code(trained), classes()
    if not (own and given):
        return  # a kind that nobody has named is told of where it is looked up
    now: dict[str, tuple[CodeFingerprint, str, type]] = {}
    for cls in given:
        found = fingerprint(cls, packages())
        for entry in found.definitions:
            now[entry] = found, entry, cls
            now.setdefault(in_file(entry), now[entry])
    compared: set[str] = set()
    for entry, sha in own.items():
        match = now.get(entry) or now.get(in_file(entry))
        if match is None:
            continue
        code, current, cls = match
        if code.is_other(current, sha):
            raise InputError(
                f"{name} was trained with other code of {entry} than {origin_of(cls)} has now, so its "
                "vectors would be others; name the file as it was, or train the head again"
            )
        compared.add(entry.partition(":")[0])
    if missing := sorted({entry.partition(":")[0] for entry in own} - compared):
        raise InputError(
            f"{name} was trained with the plug-in {missing[0]}, of which nothing is in use here; name its "
            "file as it was then (--plugins), or register its classes"
        )
