"""Schemas that the tests of SBE share."""

from __future__ import annotations

HEADER = """
<composite name="messageHeader">
  <type name="blockLength" primitiveType="uint16"/>
  <type name="templateId" primitiveType="uint16"/>
  <type name="schemaId" primitiveType="uint16"/>
  <type name="version" primitiveType="uint16"/>
</composite>
<composite name="groupSizeEncoding">
  <type name="blockLength" primitiveType="uint16"/>
  <type name="numInGroup" primitiveType="uint16" semanticType="NumInGroup"/>
</composite>"""

COUNTING_HEADER = """
<composite name="messageHeader">
  <type name="blockLength" primitiveType="uint16"/>
  <type name="templateId" primitiveType="uint16"/>
  <type name="schemaId" primitiveType="uint16"/>
  <type name="version" primitiveType="uint16"/>
  <type name="numGroups" primitiveType="uint16"/>
  <type name="numVarDataFields" primitiveType="uint16"/>
</composite>
<composite name="groupSizeEncoding">
  <type name="blockLength" primitiveType="uint16"/>
  <type name="numInGroup" primitiveType="uint16"/>
  <type name="numGroups" primitiveType="uint16"/>
  <type name="numVarDataFields" primitiveType="uint16"/>
</composite>"""


def schema_text(
    types: str, messages: str, version: int = 0, byte_order: str = "littleEndian", header: str = HEADER, number: int = 1
) -> bytes:
    """A whole schema."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="test" id="{number}" version="{version}"
                   byteOrder="{byte_order}">
<types>{header}{types}</types>
{messages}
</sbe:messageSchema>""".encode()


# The order, execution report and reject of the standard's section "Examples".
ORDERS = schema_text(
    """
<type name="idString" primitiveType="char" length="8" semanticType="String"/>
<type name="time" primitiveType="uint64" semanticType="UTCTimestamp"/>
<type name="date" primitiveType="uint16" semanticType="LocalMktDate"/>
<type name="code" primitiveType="char"/>
<type name="number" primitiveType="uint8"/>
<composite name="price">
  <type name="mantissa" primitiveType="int64" presence="optional"/>
  <type name="exponent" primitiveType="int8" presence="constant">-3</type>
</composite>
<composite name="quantity">
  <type name="mantissa" primitiveType="int32"/>
  <type name="exponent" primitiveType="int8" presence="constant">0</type>
</composite>
<composite name="monthYear" semanticType="MonthYear">
  <type name="year" primitiveType="uint16"/>
  <type name="month" primitiveType="uint8"/>
  <type name="day" primitiveType="uint8"/>
  <type name="week" primitiveType="uint8"/>
</composite>
<composite name="text">
  <type name="length" primitiveType="uint16"/>
  <type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/>
</composite>
<enum name="orderType" encodingType="code">
  <validValue name="Market">1</validValue><validValue name="Limit">2</validValue><validValue name="Stop">3</validValue>
</enum>
<enum name="side" encodingType="code">
  <validValue name="Buy">1</validValue><validValue name="Sell">2</validValue>
</enum>
<enum name="execution" encodingType="code">
  <validValue name="New">0</validValue><validValue name="Trade">F</validValue>
</enum>
<enum name="status" encodingType="code">
  <validValue name="New">0</validValue><validValue name="PartialFilled">1</validValue>
</enum>
<enum name="rejection" encodingType="number">
  <validValue name="Other">0</validValue><validValue name="NotAuthorized">6</validValue>
</enum>""",
    """
<sbe:message name="BusinessMessageReject" id="97" blockLength="9" semanticType="j">
  <field name="RefId" id="379" type="idString"/>
  <field name="Reason" id="380" type="rejection"/>
  <data name="Text" id="58" type="text"/>
</sbe:message>
<sbe:message name="ExecutionReport" id="98" blockLength="42" semanticType="8">
  <field name="OrderID" id="37" type="idString" offset="0"/>
  <field name="ExecID" id="17" type="idString" offset="8"/>
  <field name="ExecType" id="150" type="execution" offset="16"/>
  <field name="OrdStatus" id="39" type="status" offset="17"/>
  <field name="Symbol" id="55" type="idString" offset="18"/>
  <field name="MaturityMonthYear" id="200" type="monthYear" offset="26"/>
  <field name="Side" id="54" type="side" offset="31"/>
  <field name="LeavesQty" id="151" type="quantity" offset="32"/>
  <field name="CumQty" id="14" type="quantity" offset="36"/>
  <field name="TradeDate" id="75" type="date" offset="40"/>
  <group name="Fills" id="2112" blockLength="12">
    <field name="FillPx" id="1364" type="price"/>
    <field name="FillQty" id="1365" type="quantity"/>
  </group>
</sbe:message>
<sbe:message name="NewOrderSingle" id="99" blockLength="54" semanticType="D">
  <field name="ClOrdId" id="11" type="idString"/>
  <field name="Account" id="1" type="idString"/>
  <field name="Symbol" id="55" type="idString"/>
  <field name="Side" id="54" type="side"/>
  <field name="TransactTime" id="60" type="time"/>
  <field name="OrderQty" id="38" type="quantity"/>
  <field name="OrdType" id="40" type="orderType"/>
  <field name="Price" id="44" type="price"/>
  <field name="StopPx" id="99" type="price"/>
</sbe:message>""",
    number=91,
)

# The reference tool's example schema includes this document, which is not in its folder.
COMMON_TYPES = f"""<?xml version="1.0"?>
<types>{HEADER}
<composite name="varStringEncoding">
  <type name="length" primitiveType="uint32" maxValue="1073741824"/>
  <type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/>
</composite>
<composite name="varAsciiEncoding">
  <type name="length" primitiveType="uint32" maxValue="1073741824"/>
  <type name="varData" primitiveType="uint8" length="0" characterEncoding="US-ASCII"/>
</composite>
</types>""".encode()
