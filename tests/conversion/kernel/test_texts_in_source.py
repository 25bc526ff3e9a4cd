"""Documents are data: none of their names and texts is ever executed.

A message model comes from the admin server. If its texts reached the source of a kernel, whoever controls that server
could run code on every adapter.
"""

from __future__ import annotations

import io
import re
import tempfile
import tokenize
from functools import cache
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tandemfeed.adapter.conversion import CompiledConverter
from tandemfeed.adapter.conversion.kernel.kernel_names import UncheckedName, in_variable, shown
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.feedcore.documents.names import is_name, is_title
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tests.conversion.deal_material import FORMAT, MODEL, TABLE

# --- an attack that once worked: a name with a line feed

OPTIONAL = '<type name="Symbol" primitiveType="char" length="8"/>'
EVIL_TYPE = OPTIONAL + '<type name="maybe" primitiveType="char" length="8" presence="optional"/>'
DEPTH = '<message name="Depth" id="2" blockLength="2"><field name="instrument" id="1" type="uint16"/>'


def model_with(name: str) -> str:
    """The model with one more output field. It may be null, so no table has to name it."""
    evil = f'<field name={quoteattr(name, {chr(10): "&#10;"})} id="99" type="maybe"/>'
    longer = DEPTH.replace('blockLength="2"', 'blockLength="10"') + evil
    assert OPTIONAL in MODEL
    assert DEPTH in MODEL
    return MODEL.replace(OPTIONAL, EVIL_TYPE).replace(DEPTH, longer)


def load(folder: Path, source_format: str = FORMAT, table: str = TABLE, model: str = MODEL) -> ConverterTable:
    (folder / "f.xml").write_text(source_format)
    (folder / "t.xml").write_text(table)
    return load_checked_table(folder / "f.xml", folder / "t.xml", model.encode())


def payload(source: str, code: str) -> str:
    """A name that ends the kernel after its comment, runs `code`, and begins a function for the rest of the source."""
    line = next(line for line in source.splitlines() if "# instrument" in line)
    depth = (len(line) - len(line.lstrip())) // 4
    blocks = [f"{'    ' * level}if 0:" for level in range(1, depth)]
    end = ["x", "    return index, written, cursor, refused", "", code, "def rest():"]
    return "\n".join([*end, *blocks, f"{'    ' * depth}pass  #"])


def test_code_in_the_name_of_an_output_field_is_refused_and_never_runs(tmp_path: Path) -> None:
    harmless = load(tmp_path, model=model_with("harmless"))
    ran = tmp_path / "ran"
    name = payload(kernel_source(harmless).text, f"open({str(ran)!r}, 'w').close()")
    with pytest.raises(DocumentError, match=r"^message model:29: name=\"x\\n    return .* of <field> is not a name"):
        CompiledConverter(load(tmp_path, model=model_with(name)))
    assert not ran.exists()


def test_code_in_the_name_of_a_table_is_refused_and_never_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    name = f'"""; open("{ran}", "w").close(); """'
    table = TABLE.replace('name="deals"', f"name={quoteattr(name)}", 1)
    with pytest.raises(DocumentError, match=r"t\.xml:1: name='.* of <converterTable> is not a title: A to Z"):
        CompiledConverter(load(tmp_path, table=table))
    assert not ran.exists()


def test_the_generator_refuses_invalid_names() -> None:
    assert (shown("when.day"), in_variable("price")) == ("when.day", "price")
    for text in ("", "a\n", "a b", "a#", "é", "1a", "a.", ".a", "a..b"):
        with pytest.raises(UncheckedName, match="it must not reach generated source"):
            shown(text)
    with pytest.raises(UncheckedName):
        in_variable("when.day")


def test_deeply_nested_values_and_unusable_bids_are_refused(tmp_path: Path) -> None:
    chain = "".join(
        f'<let name="v{each}" function="increase" of="{f"v{each - 1}" if each else "number"}" amount="0"/>'
        for each in reversed(range(300))  # the first depends on all others
    )
    convert, side = '<convert message="order" to="Depth">', 'side="what"'
    with pytest.raises(DocumentError, match="more than 64 values depend on each other"):
        load(tmp_path, table=TABLE.replace(convert, convert + chain, 1))
    for bid in ("9" * 30, "B" * 9):
        with pytest.raises(DocumentError, match=r"bid is .*(more than 64 bits|a text of 1 to 8 bytes)"):
            load(tmp_path, table=TABLE.replace(side, f'{side} bid="{bid}"', 1))
    for bid in ("²", "--5", "-5", "１"):
        load(tmp_path, table=TABLE.replace(side, f'{side} bid="{bid}"', 1))


# --- random names and texts; each one stands between ⟦ and ⟧

NAMED_FORMAT = """<sourceFormat name="⟦title_format⟧">
<packet name="⟦title_packet⟧" headerSize="8"><sequence type="uint32"/></packet>
<framing headerSize="3" length="uint16" lengthAdds="2" type="uint8" typeOffset="2"/>
<message name="⟦source_message⟧" type="1">
<field name="⟦source_number⟧" type="uint32"/><field name="⟦source_long⟧" type="char" length="12"/>
<field name="⟦source_price⟧" type="int64" null="0"/><field name="⟦source_time⟧" type="uint32"/>
<group name="⟦source_group⟧" count="uint16"><field name="⟦entry_size⟧" type="uint16"/>
<field name="⟦entry_side⟧" type="char"/><group name="⟦inner_group⟧" count="2">
<field name="⟦inner_field⟧" type="uint8"/></group></group>
<data name="⟦source_data⟧" length="uint8" maxLength="30"/></message>
<message name="⟦other_message⟧" type="2"><field name="⟦other_id⟧" type="uint32"/><field name="side" type="char"/>
<field name="price" type="int32"/><field name="lots" type="uint16"/></message>
</sourceFormat>"""
NAMED_MODEL = """<messageSchema package="⟦text_package⟧" description="⟦text_described⟧" id="7" version="0"><types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
<type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
<type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/>
<type name="numInGroup" primitiveType="uint8"/></composite>
<composite name="octets"><type name="length" primitiveType="uint8"/>
<type name="varData" primitiveType="uint8" length="0"/></composite>
<composite name="⟦composite⟧" description="⟦text_composite⟧"><type name="⟦member⟧" primitiveType="uint32"/>
<ref name="⟦member_ref⟧" type="⟦enumeration⟧"/></composite>
<type name="⟦simple_type⟧" primitiveType="char" length="8" presence="optional" semanticType="⟦text_semantic⟧"/>
<type name="⟦constant_type⟧" primitiveType="char" presence="constant">⟦text_constant⟧</type>
<enum name="⟦enumeration⟧" encodingType="uint8">
<validValue name="⟦label_value⟧" description="⟦text_valid⟧">1</validValue></enum>
<set name="⟦bits⟧" encodingType="uint8"><choice name="⟦label_choice⟧">0</choice></set></types>
<message name="⟦output⟧" id="1" description="⟦text_message⟧"><field name="⟦out_number⟧" id="1" type="uint32"/>
<field name="⟦out_unset⟧" id="2" type="⟦simple_type⟧"/><field name="⟦out_fixed⟧" id="3" type="⟦constant_type⟧"/>
<field name="⟦out_text⟧" id="4" type="Text"/>
<group name="⟦out_group⟧" id="5"><field name="⟦out_size⟧" id="6" type="uint16"/>
<group name="⟦out_inner⟧" id="7"><field name="⟦out_inner_field⟧" id="8" type="uint8"/></group>
<data name="⟦out_note⟧" id="9" type="octets"/></group>
<data name="⟦out_data⟧" id="10" type="octets"/></message>
<message name="⟦depth⟧" id="2"><field name="⟦out_when⟧" id="1" type="⟦composite⟧"/>
<field name="bid" id="2" type="int64" presence="optional"/><field name="state" id="3" type="uint64"/></message>
</messageSchema>""".replace("<set ", '<type name="Text" primitiveType="char" length="80"/>\n<set ')
NAMED_TABLE = """<converterTable name="⟦title_table⟧" sourceFormat="⟦title_format⟧">
<map name="⟦map⟧" default="⟦text_default⟧"><entry from="⟦text_key⟧" to="⟦text_value⟧"/></map>
<map name="⟦number_map⟧" default="5" keys="text"><entry from="⟦text_other_key⟧" to="3"/></map>
<map name="⟦listed_map⟧" file="listed.csv" from="key" to="value"/>
<book name="⟦book⟧"/>
<convert message="⟦source_message⟧" to="⟦output⟧">
<when of="⟦source_long⟧" isNot="⟦text_literal⟧"/>
<let name="⟦let⟧" function="increase" of="⟦source_number⟧" amount="0"/>
<let name="narrow" function="cast" of="⟦let⟧" type="uint32"/>
<let name="at" function="since_midnight" of="⟦source_time⟧" unit="ms" zone="⟦zone⟧"/>
<let name="mapped" function="map" of="⟦source_long⟧" map="⟦map⟧"/>
<let name="looked" function="map" of="⟦source_long⟧" map="⟦number_map⟧"/>
<let name="listed" function="map" of="⟦source_long⟧" map="⟦listed_map⟧"/>
<let name="said" function="constant" text="⟦text_said⟧"/>
<keep function="last" of="⟦source_price⟧" by="⟦source_long⟧ ⟦source_number⟧" cell="⟦cell⟧"/>
<keep function="last" of="at" by="⟦source_number⟧"/>
<field name="⟦out_number⟧" function="copy" of="narrow"/>
<field name="⟦out_text⟧" function="concatenate" of="said mapped listed" separator="⟦text_separator⟧"/>
<group name="⟦out_group⟧" of="⟦source_group⟧"><when of="⟦entry_side⟧" is="B"/>
<field name="⟦out_size⟧" function="copy" of="⟦entry_size⟧"/>
<group name="⟦out_inner⟧" count="3" index="⟦index⟧">
<let name="small" function="cast" of="⟦index⟧" type="uint8" otherwise="clamp"/>
<field name="⟦out_inner_field⟧" function="copy" of="small"/></group>
<data name="⟦out_note⟧" function="copy" of="said"/></group>
<data name="⟦out_data⟧" function="copy" of="⟦source_data⟧"/></convert>
<convert message="⟦other_message⟧" to="⟦depth⟧">
<order book="⟦book⟧" action="add" by="⟦other_id⟧" id="⟦other_id⟧" side="side" bid="⟦text_bid⟧"
price="price" size="lots"/>
<let name="one" function="constant" value="1"/>
<field name="⟦out_when⟧.⟦member⟧" function="copy" of="⟦other_id⟧"/>
<field name="⟦out_when⟧.⟦member_ref⟧" function="copy" of="one"/>
<field name="bid" function="book_price" book="⟦book⟧" side="bid" level="1"/>
<field name="state" function="count" by="⟦other_id⟧"/></convert></converterTable>"""
LISTED = "key,value\nfirst,second\n⟦text_listed_key⟧,⟦text_listed_value⟧\n"  # a reference table
SLOT = re.compile("⟦([a-z_]+)⟧")
SLOTS = sorted({slot for text in (NAMED_FORMAT, NAMED_MODEL, NAMED_TABLE, LISTED) for slot in SLOT.findall(text)})
TEXTS = [slot for slot in SLOTS if slot.startswith("text_")]
LABELS = [slot for slot in SLOTS if slot.startswith("label_")]
NAMES = [slot for slot in SLOTS if slot not in (*TEXTS, *LABELS, "zone")]
DEFAULTS = {slot: f"Q{slot}Q" for slot in SLOTS} | {"zone": "America/New_York", "text_bid": "B", "text_literal": "none"}
MARK = "zq7"  # part of every text, and of nothing else
INJECTIONS = [
    *("\n", "\r", "\t", " ", '"""', "'''", "\\", "#", "{", "}", "{r}", "{of}", "{0}", "%s", "\u2028", "\x85", "é", "𝐚"),
    *("\nboom()\n", '"""\nboom()\n"""', "a\nboom()", "a # b", "]]>", "&amp;", "import os", "a;boom()", "a.b", "a-b"),
]
ANYTHING = st.one_of(
    st.sampled_from(INJECTIONS),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True),
    st.lists(st.sampled_from([*INJECTIONS, "a", "B", "_", "9"]), max_size=5).map("".join),
)


def filled(text: str, values: dict[str, str]) -> str:
    """A document with these names and texts filled in."""
    spaced = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
    return SLOT.sub(lambda slot: quoteattr("'" + values[slot[1]], {**spaced, '"': "&quot;"})[2:-1], text)


def named(values: dict[str, str]) -> ConverterTable:
    whole = DEFAULTS | values
    with tempfile.TemporaryDirectory() as folder:
        listed = SLOT.sub(lambda slot: '"' + whole[slot[1]].replace('"', '""') + '"', LISTED)
        (Path(folder) / "listed.csv").write_bytes(listed.encode())
        documents = [filled(text, whole) for text in (NAMED_FORMAT, NAMED_TABLE, NAMED_MODEL)]
        return load(Path(folder), *documents)


def source_of(values: dict[str, str]) -> str | None:
    """The kernel's source; None if the documents are refused, which must give file, line and reason."""
    try:
        return kernel_source(named(values)).text
    except DocumentError as refusal:
        text = str(refusal)
    assert re.match(r"(.+\.xml|message model):\d+: .+", text)
    return None


def tokens(source: str, kind: int) -> set[str]:
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in found if token.type == kind}


@cache
def plain() -> str:
    """The source with the default for every name and text."""
    return kernel_source(named({})).text


def test_the_documents_of_these_tests_load_and_show_every_kind_of_name() -> None:
    unseen = {slot for slot in NAMES if DEFAULTS[slot] not in plain()}
    types = {"composite", "enumeration", "bits", "simple_type", "constant_type", "out_fixed"}
    in_the_table = {"let", "index", "map", "number_map", "listed_map", "cell"}
    constant = {"out_unset", "member_ref"}  # written as bytes, among those of other fields
    assert unseen == types | in_the_table | constant | {"title_format", "title_packet", "inner_field"}


@pytest.mark.parametrize("slot", NAMES)
def test_every_kind_of_name_is_refused_with_its_place_and_what_is_allowed(slot: str) -> None:
    kind = "title" if slot.startswith("title_") else "name"
    reason = rf"(\.xml|message model):\d+: (name|index|cell)='a\\nb' of <\w+> is not a {kind}: A to Z, a to z, 0 to 9"
    with pytest.raises(DocumentError, match=reason):
        named({slot: "a\nb"})


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING, min_size=1, max_size=3))
@example({"out_unset": "x\nboom()"})
@example({"title_table": '"""; boom(); """'})
@example({"title_table": "a-b"})
@example({"source_group": "def"})
def test_a_name_is_refused_or_appears_unchanged_in_the_source(values: dict[str, str]) -> None:
    assume(len(set(values.values())) == len(values))  # two cells with one key share their comment
    source = source_of(values)
    if source is None:
        return
    for slot, value in values.items():
        assert is_title(value) if slot.startswith("title_") else is_name(value)
    marked = re.sub(r"Q[a-z_]+?Q", lambda found: values.get(found[0][1:-1], found[0]).replace("-", "_"), plain())
    assert source == marked


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*TEXTS, *LABELS]), st.tuples(ANYTHING, ANYTHING), min_size=1, max_size=4))
@example({"text_separator": ('"""\nboom()\n"""', "{r}")})
@example({"text_value": ("\nboom()\n", "#")})
@example({"text_listed_key": ("\0", "\nboom()\n"), "text_listed_value": ("#", "\r\n")})
def test_a_text_never_appears_in_the_source(values: dict[str, tuple[str, str]]) -> None:
    texts = {slot: f"{before}{MARK}{after}" for slot, (before, after) in values.items()}
    source = source_of(texts)
    if source is None:
        return
    assert source.isascii()
    assert MARK not in source
    digest = re.compile("reference tables [0-9a-f]{16}")
    kinds = (tokenize.COMMENT, tokenize.STRING, tokenize.NAME)
    for kind in kinds:
        assert tokens(digest.sub("", source), kind) <= tokens(digest.sub("", plain()), kind)


@settings(max_examples=60, deadline=None)
@given(ANYTHING)
@example("America/Argentina/Buenos_Aires")
@example("Etc/GMT+5")
@example("../../etc/passwd")
@example("America")
@example("a" * 5_000)
def test_a_time_zone_is_refused_or_appears_as_letters_in_a_comment(zone: str) -> None:
    source = source_of({"zone": zone})
    if source is None:
        return
    comments = tokens(source, tokenize.COMMENT) - tokens(plain(), tokenize.COMMENT)
    assert all(re.fullmatch(r"# [A-Za-z0-9_]+", comment) for comment in comments)
