"""Imports that fail inside transformers, told apart from files that it cannot read."""

import transformers

from permafrost.stages.extraction.checkpoint import reason
from permafrost.storage.errors import PermafrostError


def require_imported(error: BaseException) -> None:
    """Check that a failure is not that of transformers to import a module of its own, as it does when a class
    is first used; that says nothing about a file. A package that a file asks for is another matter.

    Raises:
        PermafrostError: it is.
    """
    if not isinstance(error, ImportError):
        return
    # Its lazy modules raise one without a name.
    is_lazy = isinstance(error, ModuleNotFoundError) and error.name is None
    if not is_lazy and (error.name or "").partition(".")[0] != "transformers":
        return
    first: BaseException = error
    while (cause := first.__cause__) is not None:
        first = cause
    raise PermafrostError(
        f"transformers {transformers.__version__} could not import a module of its own ({reason(first)}). In "
        "a notebook, restart the kernel if an import was interrupted; otherwise run the same again, and "
        "install transformers again if that does not help"
    ) from error
