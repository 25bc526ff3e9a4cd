"""Which rules cover a topic: a trie over the words of topic patterns. Pure.

`*` matches one word and `#` any number of words, or none. A look-up follows the words of the topic through the trie, so
its cost depends on the length of the topic and not on the number of patterns. Patterns can only be added.
"""

from __future__ import annotations

import sys

ONE_WORD, ANY_WORDS = "*", "#"
LEAVES_SHARED_MAX = 1_024


class _Node:
    """A place in the trie. Leaves have no `words`; they are shared, and so never changed.

    Attributes:
        words: the next nodes by word; a topic has no word `*` or `#`, so these two are keys like any other.
        rules: the numbers of the rules whose pattern ends here.
        is_any_words: whether the node was reached by `#`, and so stays active for any further words.
    """

    __slots__ = ("is_any_words", "rules", "words")

    def __init__(self, rules: tuple[int, ...], words: dict[str, _Node] | None, *, is_any_words: bool) -> None:
        self.rules, self.words, self.is_any_words = rules, words, is_any_words


class TopicIndex:
    """The rules of one subject, by topic."""

    def __init__(self) -> None:
        self._root = _Node((), {}, is_any_words=False)
        self._leaves: dict[tuple[tuple[int, ...], bool], _Node] = {}  # so that a rule's patterns share one leaf

    def add(self, pattern: str, rule: int) -> None:
        """Add a rule's pattern. Rules must be added in ascending order."""
        words = _words_of(pattern)
        children = self._root.words
        for word in words[:-1]:
            assert children is not None
            children = _inner_node(children, word).words
        assert children is not None
        last = words[-1]
        known = children.get(last)
        rules = (rule,) if known is None else known.rules if rule in known.rules else (*known.rules, rule)
        if known is None or known.words is None:
            children[last] = self._leaf(rules, is_any_words=last == ANY_WORDS)
        else:
            known.rules = rules

    def find(self, topic: str) -> set[int]:
        """The rules that have a pattern which covers the topic."""
        active = {self._root}
        _add_any_words(active, self._root)
        for word in topic.split("."):
            following: set[_Node] = set()
            for node in active:
                if node.is_any_words:
                    following.add(node)
                if (children := node.words) is None:
                    continue
                for key in (word, ONE_WORD):
                    if (child := children.get(key)) is not None:
                        following.add(child)
                        _add_any_words(following, child)
            active = following
        return {rule for node in active for rule in node.rules}

    def _leaf(self, rules: tuple[int, ...], *, is_any_words: bool) -> _Node:
        if len(self._leaves) >= LEAVES_SHARED_MAX:
            self._leaves.clear()
        return self._leaves.setdefault((rules, is_any_words), _Node(rules, None, is_any_words=is_any_words))


def _words_of(pattern: str) -> list[str]:
    """The words, interned. `#.#` means `#`, and `#.*` means `*.#`, which has fewer nodes active at a time."""
    words: list[str] = []
    for word in pattern.split("."):
        if words and words[-1] == ANY_WORDS and word in (ONE_WORD, ANY_WORDS):
            if word == ONE_WORD:
                words.insert(-1, ONE_WORD)
        else:
            words.append(sys.intern(word))
    return words


def _inner_node(children: dict[str, _Node], word: str) -> _Node:
    """The node of a word, which will have children; a leaf in its place is replaced."""
    known = children.get(word)
    if known is None or known.words is None:
        rules = () if known is None else known.rules
        known = children[word] = _Node(rules, {}, is_any_words=word == ANY_WORDS)
    return known


def _add_any_words(nodes: set[_Node], node: _Node) -> None:
    """`#` matches no word at all, so the node after it is active together with the one before it."""
    if node.words is not None and (child := node.words.get(ANY_WORDS)) is not None:
        nodes.add(child)
