"""Simple Binary Encoding 1.0, as the FIX standard has it: message schemas, reading, writing, numpy views.

`load_schema` reads a schema; `SbeReader` and `SbeWriter` turn its messages into plain Python values and back;
`layout.block_dtype` gives the fixed part of a message or group entry as a numpy structure.
"""

from feedcore.sbe.errors import SbeError, SbeReadError, SbeWriteError
from feedcore.sbe.loading import load_schema
from feedcore.sbe.reading import SbeReader
from feedcore.sbe.types import Schema
from feedcore.sbe.values import SbeMessage, Unlisted, as_decimal
from feedcore.sbe.writing import SbeWriter

__all__ = [
    "SbeError",
    "SbeMessage",
    "SbeReadError",
    "SbeReader",
    "SbeWriteError",
    "SbeWriter",
    "Schema",
    "Unlisted",
    "as_decimal",
    "load_schema",
]
