"""Classes that a reload of their module has replaced, which a name in a notebook may still hold."""

import sys
from collections.abc import Collection
from dis import get_instructions
from traceback import walk_stack
from types import FrameType


def is_stale(cls: type, registered: Collection[type]) -> bool:
    """Whether the module of a class has another one under its name, and is not about to have this one.

    Args:
        cls: a class of a module.
        registered: those that were registered before; of these the module had its own.
    """
    named = named_now(cls)
    if named is cls:
        return False
    if cls in registered or cls.__module__ not in sys.modules:
        return True
    # A decorator is called before the module has the class; in a reload, while that has the former one.
    return isinstance(named, type) and not any(_defines(f, cls) for f, _ in walk_stack(None))


def _defines(frame: FrameType, cls: type) -> bool:
    """Whether a frame may be about to give a class its name: the module's own code, or a function with
    `global`."""
    if frame.f_globals.get("__name__") != cls.__module__:
        return False
    name = cls.__qualname__.partition(".")[0]
    return frame.f_code.co_name == "<module>" or any(
        done.opname == "STORE_GLOBAL" and done.argval == name
        for done in get_instructions(frame.f_code)
    )


def named_now(cls: type) -> object | None:
    """What the module of a class has under its name; None if nothing, or if it is loaded no more."""
    found: object | None = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def again(cls: type) -> str:
    """What to do about a class from before a reload."""
    first = cls.__qualname__.partition(".")[0]
    return (
        f"import it again ('from {cls.__module__} import {first}'), which a reload does not do, and register "
        f"that one, or {cls.__module__}.{cls.__qualname__}"
    )
