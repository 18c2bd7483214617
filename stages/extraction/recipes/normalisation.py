"""Texts made alike before they go into a prompt."""


def normalise_sentence(text: str) -> str:
    """A text as the PromptEOL family of methods prepares it.

    White space becomes single spaces, a missing final mark becomes a full stop, as does a final question
    mark, and double quotes become single ones, so that the text cannot close the prompt's quotes.
    """
    words = " ".join(text.split())
    if words and words[-1] not in ".?\"'":
        words += "."
    words = words.replace('"', "'")
    if words.endswith("?"):
        words = words[:-1] + "."
    return words.strip()
