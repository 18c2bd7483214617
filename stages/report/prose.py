"""A little Markdown for a report's description: paragraphs, lists, `code` and **bold**."""

import re

from markupsafe import Markup, escape

_CODE = re.compile(r"`([^`\n]+)`")
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")


def prose(text: str) -> Markup:
    """HTML of the text. Everything in it is escaped, so no tag of the writer's gets through."""
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    return Markup("\n").join(_block(block) for block in blocks)


def _block(block: str) -> Markup:
    lines = [line.strip() for line in block.splitlines()]
    if all(line.startswith("- ") for line in lines):
        items = Markup("").join(Markup("<li>{}</li>").format(_inline(line[2:])) for line in lines)
        return Markup("<ul>{}</ul>").format(items)
    return Markup("<p>{}</p>").format(_inline(" ".join(lines)))


def _inline(text: str) -> Markup:
    """Code spans first, so that asterisks inside them stay as they are."""
    parts = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part)
        if i % 2
        else Markup(_BOLD.sub(r"<strong>\1</strong>", str(escape(part))))
        for i, part in enumerate(parts)
    )
