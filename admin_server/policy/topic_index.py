"""Which rules cover a topic: a trie over the words of topic patterns. Pure.

`*` matches one word and `#` any number of words, or none. A look-up follows the words of the topic through the trie, so
its cost depends on the length of the topic and not on the number of patterns. Patterns can only be added.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

ONE_WORD, ANY_WORDS = "*", "#"
LEAVES_SHARED_MAX = 1_024


class Node:
    """A place in the trie. Leaves have `words` None; they are shared, and so never changed.

    Attributes:
        words: the next nodes by word; a topic has no word `*` or `#`, so these two are keys like any other.
        one, any: the next nodes for `*` and `#`, also found in `words`; here because every look-up asks for them.
        rules: the numbers of the rules whose pattern ends here.
        is_any_words: whether the node was reached by `#`, and so stays active for any further words.
    """

    __slots__ = ("any", "is_any_words", "one", "rules", "words")

    def __init__(self, rules: tuple[int, ...], words: dict[str, Node] | None, *, is_any_words: bool) -> None:
        self.rules, self.words, self.is_any_words = rules, words, is_any_words
        self.one: Node | None = None
        self.any: Node | None = None

    def put(self, word: str, child: Node) -> None:
        """Set the next node for a word."""
        assert self.words is not None
        self.words[word] = child
        if word == ONE_WORD:
            self.one = child
        elif word == ANY_WORDS:
            self.any = child


class TopicIndex:
    """The rules of one subject, by topic."""

    def __init__(self) -> None:
        self._root = Node((), {}, is_any_words=False)
        self._leaves: dict[tuple[tuple[int, ...], bool], Node] = {}  # so that a rule's patterns share one leaf

    def add(self, pattern: str, rule: int) -> None:
        """Add a rule's pattern. Rules must be added in ascending order."""
        *words, last = _words_of(pattern)
        node = self._root
        for word in words:
            node = _inner_node(node, word)
        assert node.words is not None
        known = node.words.get(last)
        rules = (rule,) if known is None else known.rules if rule in known.rules else (*known.rules, rule)
        if known is None or known.words is None:
            node.put(last, self._leaf(rules, is_any_words=last == ANY_WORDS))
        else:
            known.rules = rules

    def rules_of(self, topic: str) -> set[int]:
        """The rules that have a pattern which covers the topic."""
        return {rule for node in self.find(topic) for rule in node.rules}

    def find(self, topic: str) -> list[Node]:
        """Where the patterns end that cover the topic. The places and their rules stay as long as nothing is added."""
        return [node for node in self._follow(topic) if node.rules]

    def below(self, topic: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The words with which patterns continue below the topic by one word, and the rules that have them."""
        for node in self._follow(topic):
            for word, child in (node.words or {}).items():
                rules = child.rules if child.any is None else (*child.rules, *child.any.rules)
                if rules and word != ANY_WORDS:
                    yield word, rules

    def _follow(self, topic: str) -> list[Node]:
        """The nodes at which patterns that begin as the topic arrive."""
        root = self._root
        active = [root] if root.any is None else [root, root.any]
        for word in topic.split("."):
            following: list[Node] = []
            for node in active:
                if node.is_any_words and node not in following:
                    following.append(node)
                if (words := node.words) is None:
                    continue
                # The same steps for both children, without a loop, because they are what each further pattern costs.
                if (child := words.get(word)) is not None:
                    following.append(child)
                    # `#` also matches no word, so its node is active together with the one before it.
                    if (any_words := child.any) is not None and any_words not in following:
                        following.append(any_words)
                if (child := node.one) is not None:
                    following.append(child)
                    if (any_words := child.any) is not None and any_words not in following:
                        following.append(any_words)
            active = following
        return active

    def _leaf(self, rules: tuple[int, ...], *, is_any_words: bool) -> Node:
        key = rules, is_any_words
        if (known := self._leaves.get(key)) is None:
            if len(self._leaves) >= LEAVES_SHARED_MAX:
                self._leaves.clear()
            known = self._leaves[key] = Node(rules, None, is_any_words=is_any_words)
        return known


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


def _inner_node(parent: Node, word: str) -> Node:
    """The node of a word, which will have children; a leaf in its place is replaced."""
    assert parent.words is not None
    known = parent.words.get(word)
    if known is None or known.words is None:
        rules = () if known is None else known.rules
        known = Node(rules, {}, is_any_words=word == ANY_WORDS)
        parent.put(word, known)
    return known
