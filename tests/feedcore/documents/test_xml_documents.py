"""The parser's work on a document is limited, and names are checked, because documents come from other processes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemfeed.feedcore.documents import xml_document
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.names import is_label, is_name, is_title
from tandemfeed.feedcore.documents.xml_document import DEPTH_MAX, DocumentError, parse_document
from tandemfeed.feedcore.sbe import load_schema
from tandemfeed.feedcore.sbe.type_loading import COMPOSITE_VALUES_MAX, REFERENCES_MAX
from tests.feedcore.sbe.sbe_material import HEADER, schema_text

# Entities of entities: 10^9 times "lol", and the same through an attribute's default.
LAUGHS = "".join(f'<!ENTITY l{each} "{f"&l{each - 1};" * 10}">' for each in range(1, 10))
DOCTYPES = [
    f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]><a>&l9;</a>',
    '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
    '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
    '<!DOCTYPE a [<!ATTLIST a b CDATA "c">]><a/>',
]


@pytest.mark.parametrize("text", DOCTYPES)
def test_a_doctype_that_declares_anything_is_refused_with_an_explanation(text: str) -> None:
    with pytest.raises(
        DocumentError, match=r"^model\.xml:2: a DOCTYPE with declarations is not allowed, .*: remove it"
    ):
        parse_document(f'<?xml version="1.0"?>\n{text}'.encode(), "model.xml")


def test_a_message_model_with_a_doctype_that_declares_anything_is_refused() -> None:
    schema = schema_text("", '<message name="M" id="1"/>')
    declared = b'<!DOCTYPE a [<!ENTITY b "c">]>\n<sbe:messageSchema'
    with pytest.raises(DocumentError, match="a DOCTYPE with declarations is not allowed"):
        load_message_model(schema.replace(b"<sbe:messageSchema", declared, 1))


def test_a_doctype_that_only_names_the_document_is_harmless() -> None:
    assert parse_document(b"<!DOCTYPE xml><a/>", "a.xml").tag == "a"
    with pytest.raises(DocumentError, match="undefined entity"):
        parse_document(b"<!DOCTYPE xml><a>&b;</a>", "a.xml")


def test_a_text_that_the_parser_delivers_in_pieces_is_joined() -> None:
    count = 200_000  # the parser delivers a piece for each reference
    node = parse_document(b"<a>" + b"&#10;x" * count + b"<b>in</b>out</a>", "a.xml")
    assert node.text == "\nx" * count + "out"
    assert node.children[0].text == "in"


def nested(depth: int) -> bytes:
    return b"<a>" * depth + b"</a>" * depth


def test_depth_size_elements_and_attributes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    parse_document(nested(DEPTH_MAX), "a.xml")
    with pytest.raises(DocumentError, match=rf"^a\.xml:1: more than {DEPTH_MAX} elements one inside another"):
        parse_document(nested(DEPTH_MAX + 1), "a.xml")
    with pytest.raises(DocumentError, match="more than 64 attributes of one element"):
        parse_document(b"<a " + b" ".join(b'b%d=""' % each for each in range(65)) + b"/>", "a.xml")
    many = b"".join(b'<b c%d=""/>' % each for each in range(501))
    with pytest.raises(DocumentError, match="more than 500 different attributes in the document"):
        parse_document(b"<a>" + many + b"</a>", "a.xml")
    monkeypatch.setattr(xml_document, "NODE_COUNT_MAX", 5)
    monkeypatch.setattr(xml_document, "DOCUMENT_SIZE_MAX", 50)
    assert len(parse_document(b"<a>" + b"<b/>" * 4 + b"</a>", "a.xml").children) == 4
    with pytest.raises(DocumentError, match=r"^a\.xml:3: more than 5 elements in the document"):
        parse_document(b"<a>" + b"<b/>" * 4 + b"\n\n<b/></a>", "a.xml")
    with pytest.raises(DocumentError, match=r"^a\.xml:1: the document has 51 bytes, at most 50 are allowed"):
        parse_document(b"<a/>".ljust(51), "a.xml")


@pytest.mark.parametrize("encoding", ["nonsense", "utf-7", "idna", "rot13", "utf-32", "big5"])
def test_an_unreadable_encoding_is_refused_like_any_other_error(encoding: str) -> None:
    with pytest.raises(DocumentError, match=r"^a\.xml:1: "):
        parse_document(f'<?xml version="1.0" encoding="{encoding}"?><a b="é"/>'.encode(), "a.xml")


@given(st.binary(max_size=60))
@example(b"")
@example(b"\xff\xfe<\x00a\x00/\x00>\x00")
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        assert parse_document(data, "a.xml").tag
    except DocumentError as refusal:
        error_text = str(refusal)
    else:
        return
    assert error_text.startswith("a.xml:")


def composites(count: int, refs: int) -> str:
    """Composites that each have `refs` references to the previous one."""
    lines = ['<composite name="c0"><type name="x" primitiveType="uint8"/></composite>']
    for each in range(1, count):
        members = "".join(f'<ref name="r{ref}" type="c{each - 1}"/>' for ref in range(refs))
        lines.append(f'<composite name="c{each}">{members}</composite>')
    return "\n".join(reversed(lines))  # the one that needs all others comes first, so that it is resolved recursively


def one_message(types: str, kind: str) -> bytes:
    return schema_text(types, f'<message name="M" id="1"><field name="f" id="1" type="{kind}"/></message>')


def test_the_number_and_depth_of_references_between_types_are_limited() -> None:
    assert load_schema(one_message(composites(9, 2), "c8")).messages["M"].block_length == COMPOSITE_VALUES_MAX
    with pytest.raises(DocumentError, match=f"more than {COMPOSITE_VALUES_MAX} values"):
        load_schema(one_message(composites(31, 2), "c30"))
    load_schema(one_message(composites(REFERENCES_MAX, 1), f"c{REFERENCES_MAX - 1}"))
    with pytest.raises(DocumentError, match=f"more than {REFERENCES_MAX} types refer to each other"):
        load_schema(one_message(composites(1_000, 1), "c999"))


@pytest.mark.parametrize(
    "text",
    [
        one_message('<type name="T" primitiveType="int64" length="8192"/>', "T"),
        one_message('<composite name="T"><type name="x" primitiveType="int8" offset="99999999999"/></composite>', "T"),
        schema_text("", '<message name="M" id="1" blockLength="65536"/>'),
        schema_text("", "", header=HEADER.replace('name="numInGroup"', 'name="numInGroup" offset="99999999999"')),
    ],
)
def test_no_fixed_part_is_larger_than_a_message_may_be(text: bytes) -> None:
    with pytest.raises(DocumentError, match=r"bytes, at most 65535"):
        load_schema(text)


BAD_NAMES = ["", " ", "a b", "1a", "a\n", "a\nb", "a.b", "a-b", "é", "a#", '"""', "a" * 129]
NAMED = [
    '<type name="{}" primitiveType="uint8"/>',
    '<composite name="{}"><type name="x" primitiveType="uint8"/></composite>',
    '<composite name="c"><type name="{}" primitiveType="uint8"/></composite>',
    '<composite name="c"><ref name="{}" type="uint8"/></composite>',
    '<enum name="{}" encodingType="uint8"><validValue name="x">1</validValue></enum>',
    '<set name="{}" encodingType="uint8"/>',
    '</types><message name="{}" id="1"/><types>',
    '</types><message name="M" id="1"><field name="{}" id="1" type="uint8"/></message><types>',
    '</types><message name="M" id="1"><group name="{}" id="1"><field name="x" id="1" type="uint8"/></group></message>'
    "<types>",
    '<composite name="d"><type name="length" primitiveType="uint8"/><type name="x" primitiveType="uint8" length="0"/>'
    '</composite></types><message name="M" id="1"><data name="{}" id="1" type="d"/></message><types>',
]


@pytest.mark.parametrize("text", NAMED)
def test_every_kind_of_name_in_a_schema_must_be_a_valid_name(text: str) -> None:
    load_schema(schema_text(text.format("a_1"), ""))
    for name in BAD_NAMES:
        written = name.replace("\n", "&#10;").replace('"', "&quot;")
        with pytest.raises(DocumentError, match=r"^schema\.xml:\d+: name=.* of <\w+> is not a name: A to Z, a to z"):
            load_schema(schema_text(text.format(written), ""), "schema.xml")


LABELLED = [
    '<enum name="e" encodingType="uint8"><validValue name="{}">1</validValue></enum>',
    '<set name="s" encodingType="uint8"><choice name="{}">1</choice></set>',
]


@pytest.mark.parametrize("text", LABELLED)
def test_labels_of_enumeration_values_and_set_bits_may_have_blanks(text: str) -> None:
    for name in ("Pending delisting", "1st", "a-b", "Ö"):
        load_schema(schema_text(text.format(name), ""))
    for name in ("", " a", "a&#10;b", "a&#8232;b", "a&#9;b", "x" * 129):
        with pytest.raises(DocumentError, match=r"is not a label: printable characters are allowed"):
            load_schema(schema_text(text.format(name), ""))


@given(st.text(max_size=10))
@example("a\n")
@example("ａ")  # full width; Python identifiers treat it as an "a"
@example("²")
def test_every_name_is_an_ascii_identifier_a_title_and_a_label(text: str) -> None:
    if is_name(text):
        assert text.isascii()
        assert text.isidentifier()
        assert is_title(text)
        assert is_label(text)
