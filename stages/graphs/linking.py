"""Entity linking by lemma: which nodes of a knowledge graph a text names."""

from collections.abc import Sequence

from permafrost.stages.graphs.lemmas import ENGLISH, is_stop_word, lemma, words_of

MAX_WORDS = 5
"""Default length of the longest phrase; longer labels cannot be linked."""


class EntityIndex:
    """The labels of a knowledge graph by their lemmas.

    At every word of a text the longest phrase of one to `max_words` words is taken whose lemmas are those
    of a label, and linking goes on behind it. A phrase of stop words alone is no entity. Labels with equal
    lemmas ("dog", "dogs") are all linked.

    Args:
        labels: of the nodes.
        max_words: of a phrase; longer labels cannot be linked.
        language: of labels and texts, whose lemmas are compared. Stop words are those of English.

    Source: QA-GNN links with spaCy's lemmas, and takes phrases that overlap, too.
    """

    def __init__(
        self, labels: Sequence[str], max_words: int = MAX_WORDS, language: str = ENGLISH
    ) -> None:
        self._language = language
        self._nodes: dict[tuple[str, ...], list[int]] = {}
        self._longest: dict[str, int] = {}
        for node, label in enumerate(labels):
            words = words_of(label, language)
            if not 0 < len(words) <= max_words or self._are_stop_words(words):
                continue
            key = tuple(lemma(word, language) for word in words)
            self._nodes.setdefault(key, []).append(node)
            self._longest[key[0]] = max(len(key), self._longest.get(key[0], 0))

    def __len__(self) -> int:
        """Number of phrases that can be linked."""
        return len(self._nodes)

    def link(self, text: str) -> list[int]:
        """The nodes that a text names, each once, in order of first appearance; empty if it names none."""
        words = words_of(text, self._language)
        lemmas = [lemma(word, self._language) for word in words]
        found: dict[int, None] = {}
        at = 0
        while at < len(lemmas):
            taken = 1
            for length in range(min(self._longest.get(lemmas[at], 0), len(lemmas) - at), 0, -1):
                nodes = self._nodes.get(tuple(lemmas[at : at + length]))
                if nodes is not None and not self._are_stop_words(words[at : at + length]):
                    found |= dict.fromkeys(nodes)
                    taken = length
                    break
            at += taken
        return list(found)

    def _are_stop_words(self, words: Sequence[str]) -> bool:
        return all(is_stop_word(word, self._language) for word in words)
