"""The name by which mteb stores results of a model."""

import re


def mteb_name(name: str) -> str:
    """`permafrost/<name>`, with nothing but letters, digits, `.`, `_` and `-` in the name."""
    return f"permafrost/{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-') or 'encoder'}"
