"""How an encoder runs, as callers in Python say it."""

import torch
from pydantic import ValidationError

from permafrost.stages.extraction.device import require_known_device
from permafrost.stages.extraction.target import ExtractRuntime
from permafrost.stages.wrong_fields import wrong_fields
from permafrost.storage.errors import InputError

Device = str | torch.device | None
"""`auto` or None (the first GPU, else the CPU), a torch device, or its name."""
BATCH_TOKENS = ExtractRuntime().batch_tokens


def runtime_on(device: Device, batch_tokens: int = BATCH_TOKENS) -> ExtractRuntime:
    """Where and in which batches a backbone runs; whether there is such a device is found out when it is
    loaded.

    Raises:
        InputError: a value that cannot be used; the message names it.
    """
    fields = {"device": device_text(device), "batch_tokens": batch_tokens}
    try:
        return ExtractRuntime.model_validate(fields)
    except ValidationError as error:
        raise InputError(wrong_fields(error, ExtractRuntime, fields, "; ")) from error


def device_text(device: Device) -> str:
    """The name of a device. Raises: InputError: it is none that is known."""
    name = "auto" if device is None else str(device)
    require_known_device(name)
    return name
