"""Simple Binary Encoding 1.0, as the FIX standard has it: message schemas, reading, numpy views.

`load_schema` reads a schema, `SbeReader` turns its messages into plain Python values, and `Block.dtype` gives the fixed
part of a message or group entry as a numpy structure.
"""

from feedcore.sbe.loading import load_schema
from feedcore.sbe.messages import Schema
from feedcore.sbe.reading import SbeMessage, SbeReader, SbeReadError, Unlisted, as_decimal

__all__ = ["SbeMessage", "SbeReadError", "SbeReader", "Schema", "Unlisted", "as_decimal", "load_schema"]
