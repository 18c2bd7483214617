"""Standard output and error: any character can be printed, and a reader that goes away ends no command."""

import codecs
import errno
import io
import os
import stat
import sys
from typing import TextIO

_PLAIN = {
    "±": "+/-",
    "≈": "~",
    "−": "-",
    "–": "-",
    "—": "-",
    "×": "x",
    "·": "|",
    "…": "...",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
}
"""What stands for a character of our own that a stream cannot write; any other is written as its number."""


def print_any_character() -> None:
    """Let both streams write what their encoding has no character for, as under a locale without UTF-8."""
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="plain")


def is_unread(stream: TextIO, error: OSError) -> bool:
    """Whether a stream could not be written as its reader has gone: a pipe's, or the terminal was closed. The
    same error of a file is its disk's."""
    if error.errno == errno.EIO:
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return isinstance(error, BrokenPipeError)


def let_go(stream: TextIO) -> None:
    """Drop whatever follows on a stream whose reader has gone, as `head` does after its last line."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    given = error.object[error.start : error.end]
    shown = (_PLAIN.get(c, c.encode("ascii", "backslashreplace").decode()) for c in given)
    return "".join(shown), error.end
