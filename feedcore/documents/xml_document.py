"""XML documents with line numbers, so that errors name file, line and reason.

Documents also come from other processes (a message model comes from the admin server), so the parser's work is
bounded: a DOCTYPE may declare nothing, so there are no entities; size, elements, attributes and depth are limited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from xml.parsers import expat

from tandemfeed.feedcore.documents.names import LABEL_RULE, NAME_RULE, TITLE_RULE, is_label, is_name, is_title

DOCUMENT_SIZE_MAX = 16 << 20  # bytes: a map of 200,000 entries written out; larger ones are read from CSV files
NODE_COUNT_MAX = 250_000  # an element takes about 500 bytes of memory: 125 MB in all
ATTRIBUTE_COUNT_MAX = 64  # per element; functions in a converter table have the most, about twenty
ATTRIBUTE_NAMES_MAX = 500  # per document; each unknown one is compared with all known ones
DEPTH_MAX = 32  # loaders recurse once per level, and Python allows a thousand calls; shipped documents have 4
SHOWN_MAX = 80  # characters of an invalid name that an error shows


class DocumentError(ValueError):
    """A document is unusable; the text begins with file and line."""

    def __init__(self, document: str, line: int, reason: str) -> None:
        super().__init__(f"{document}:{line}: {reason}")
        self.line = line
        self.reason = reason


@dataclass(slots=True)
class Node:
    """An element; `tag` has no namespace prefix. Missing or invalid attributes raise DocumentError."""

    document: str
    tag: str
    line: int
    attributes: dict[str, str]
    children: list[Node] = field(default_factory=list)
    text: str = ""

    def error(self, reason: str) -> DocumentError:
        """An error at this element's line."""
        return DocumentError(self.document, self.line, reason)

    def need(self, name: str) -> str:
        """A required attribute."""
        try:
            return self.attributes[name]
        except KeyError:
            raise self.error(f"<{self.tag}> needs the attribute {name!r}") from None

    def name(self, attribute: str = "name") -> str:
        """A required attribute that must be a name, because generated source may use it."""
        return self._checked(attribute, is_name, f"a name: {NAME_RULE}")

    def title(self) -> str:
        """The document's title: like a name, but with hyphens."""
        return self._checked("name", is_title, f"a title: {TITLE_RULE}")

    def label(self) -> str:
        """The label of an enumeration's value or a set's bit: for people, never in generated source."""
        return self._checked("name", is_label, f"a label: {LABEL_RULE}")

    def _checked(self, attribute: str, is_allowed: Callable[[str], bool], what: str) -> str:
        text = self.need(attribute)
        if not is_allowed(text):
            raise self.error(f"{attribute}={text[:SHOWN_MAX]!r} of <{self.tag}> is not {what}")
        return text

    def need_int(self, name: str) -> int:
        """A required integer attribute."""
        text = self.need(name)
        try:
            return int(text)
        except ValueError:
            raise self.error(f"{name}={text!r} of <{self.tag}> is not an integer") from None

    def get_int(self, name: str, default: int) -> int:
        """An optional integer attribute."""
        return self.need_int(name) if name in self.attributes else default

    def only(self, *names: str) -> None:
        """Refuse unknown attributes, so that a misspelt one does not pass silently."""
        unknown = sorted(set(self.attributes) - set(names))
        if unknown:
            raise self.error(f"<{self.tag}> has no attribute {unknown[0]!r}; it takes {', '.join(names)}")

    def all(self, tag: str) -> list[Node]:
        """The children with this tag."""
        return [child for child in self.children if child.tag == tag]


def parse_document(data: bytes, document: str) -> Node:
    """Parse XML.

    Args:
        document: the name for errors, normally the file's path.

    Raises:
        DocumentError: the document is not well-formed, has a DOCTYPE with declarations, or exceeds a limit.
    """
    if len(data) > DOCUMENT_SIZE_MAX:
        raise DocumentError(document, 1, f"the document has {len(data)} bytes, at most {DOCUMENT_SIZE_MAX} are allowed")
    builder = _TreeBuilder(document)
    try:
        builder.parser.Parse(data, True)
    except expat.ExpatError as malformed:
        raise DocumentError(document, malformed.lineno, f"not well-formed XML: {malformed}") from None
    except DocumentError:
        raise
    except (LookupError, ValueError) as unreadable:  # of Python's codecs: an encoding that they do not have
        raise DocumentError(document, 1, f"unreadable encoding: {unreadable}") from None
    return builder.roots[0]  # there is exactly one root, or the parser would have refused the document


class _TreeBuilder:
    """Makes nodes from the parser's events, within the limits."""

    def __init__(self, document: str) -> None:
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._check_doctype
        self._document = document
        self._stack: list[Node] = []
        self._texts: list[list[str]] = []  # of the open elements, joined when they end
        self.roots: list[Node] = []
        self._count = 0
        self._attribute_names: set[str] = set()

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        plain = {name: value for name, value in attributes.items() if not name.startswith("xmlns")}
        node = Node(self._document, tag.rpartition(":")[2], self.parser.CurrentLineNumber, plain)
        self._count += 1
        self._attribute_names.update(attributes)
        for found, most, what in (
            (self._count, NODE_COUNT_MAX, "elements in the document"),
            (len(self._stack) + 1, DEPTH_MAX, "elements one inside another"),
            (len(attributes), ATTRIBUTE_COUNT_MAX, "attributes of one element"),
            (len(self._attribute_names), ATTRIBUTE_NAMES_MAX, "different attributes in the document"),
        ):
            if found > most:
                raise node.error(f"more than {most} {what}")
        (self._stack[-1].children if self._stack else self.roots).append(node)
        self._stack.append(node)
        self._texts.append([])

    def _end(self, _tag: str) -> None:
        self._stack.pop().text = "".join(self._texts.pop())

    def _text(self, data: str) -> None:
        if self._texts:
            self._texts[-1].append(data)

    def _check_doctype(self, _name: str, system: str | None, public: str | None, has_declarations: int) -> None:
        """Allow `<!DOCTYPE name>`, which declares nothing; exchanges' schemas have it."""
        if system or public or has_declarations:
            reason = "a DOCTYPE with declarations is not allowed, because its entities could make text of any size"
            raise DocumentError(self._document, self.parser.CurrentLineNumber, reason + ": remove it")
