"""The terminal, which shows the words of users as they are: nothing in them is markup or a control code."""

from typing import Any

from rich.console import Console
from rich.text import Text

from permafrost.storage.quoting import visible


class Terminal(Console):
    """A console that takes strings literally; what is to be styled comes as `rich.text.Text`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """As the parent, each line with its control characters visible."""
        return super().render_str("\n".join(map(visible, text.split("\n"))), **settings)
