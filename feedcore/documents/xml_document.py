"""XML documents with line numbers, so that an error in one names file, line and reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat


class DocumentError(ValueError):
    """A document cannot be used; the text begins with file and line."""

    def __init__(self, document: str, line: int, reason: str) -> None:
        super().__init__(f"{document}:{line}: {reason}")
        self.line = line
        self.reason = reason


@dataclass(slots=True)
class Node:
    """An element. `tag` is without its namespace prefix."""

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
        """An attribute that must be there."""
        try:
            return self.attributes[name]
        except KeyError:
            raise self.error(f"<{self.tag}> needs the attribute {name!r}") from None

    def need_int(self, name: str) -> int:
        """An attribute that must be there and be an integer."""
        text = self.need(name)
        try:
            return int(text)
        except ValueError:
            raise self.error(f"{name}={text!r} of <{self.tag}> is not an integer") from None

    def get_int(self, name: str, default: int) -> int:
        """An integer attribute that may be missing."""
        return self.need_int(name) if name in self.attributes else default

    def only(self, *names: str) -> None:
        """Refuse attributes that nobody reads: a misspelt one must not pass silently."""
        unknown = sorted(set(self.attributes) - set(names))
        if unknown:
            raise self.error(f"<{self.tag}> has no attribute {unknown[0]!r}; it takes {', '.join(names)}")

    def all(self, tag: str) -> list[Node]:
        """The children with this tag."""
        return [child for child in self.children if child.tag == tag]


def parse_document(data: bytes, document: str) -> Node:
    """Parse XML.

    Args:
        document: the name to use in errors, normally the file's path.

    Raises:
        DocumentError: not well-formed.
    """
    parser = expat.ParserCreate()
    stack: list[Node] = []
    roots: list[Node] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        plain = {name: value for name, value in attributes.items() if not name.startswith("xmlns")}
        node = Node(document, tag.rpartition(":")[2], parser.CurrentLineNumber, plain)
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)

    def end(_tag: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        if stack:
            stack[-1].text += data

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as malformed:
        raise DocumentError(document, malformed.lineno, f"not well-formed XML: {malformed}") from None
    return roots[0]
