"""Object stores by URL."""

import datetime
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from obstore.store import RetryConfig

SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
"""Object stores with conditional writes, which leases need."""
HUB = "hf://"


def connected(url: str) -> ObjectStore:
    """The object store of a home's URL; nothing is sent yet.

    Raises:
        InputError: the kind of object store is unknown, a setting is wrong, or the URL names another place
            than it seems to: clients drop what comes after `?` and `#`, decode `%`, and resolve `..`.
    """
    if url.startswith(HUB):
        raise InputError(
            f"the home {url} is on the Hugging Face hub, from where homes are only copied; run 'permafrost "
            "pull --from hf://datasets/OWNER/NAME', and use the home that this fills"
        )
    if url.partition("://")[0] not in SCHEMES:
        raise InputError(
            f"the home {url} is on an unknown kind of object store; give a folder, or a URL that begins with "
            f"{', '.join(s + '://' for s in SCHEMES)}"
        )
    # Short on purpose, so that a wrong endpoint is reported within seconds. Uploads are split into parts.
    limits: RetryConfig = {"max_retries": 4, "retry_timeout": datetime.timedelta(seconds=30)}
    try:
        store = from_url(url, retry_config=limits)  # pyright: ignore[reportUnknownMemberType, reportCallIssue]
    except (BaseError, ValueError) as error:
        raise InputError(f"the home {url} cannot be used: {reason(error)}") from error
    bucket, _, path = url.partition("://")[2].partition("/")
    opened = str(getattr(store, "prefix", None) or "").strip("/")
    if path.strip("/") != opened or {"?", "#"} & set(bucket):
        raise InputError(
            f"the home {quoted(url)} would be {quoted(opened)} of its bucket, not {quoted(path.strip('/'))}; "
            "name a place without '?', '#' and '%', and without folders '.' and '..'"
        )
    return store


def reason(error: Exception) -> str:
    """The first line of an error, as the rest is the client's debug output."""
    text: Any = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
