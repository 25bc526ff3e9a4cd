"""Simple Binary Encoding 1.0, as the FIX standard has it: message schemas, and what their messages look like.

`load_schema` reads a schema; `Block.dtype` gives the fixed part of a message or group entry as a numpy structure.
`client_lib.sbe_reading` turns messages into plain Python values.
"""

from feedcore.sbe.loading import load_schema
from feedcore.sbe.messages import Schema

__all__ = ["Schema", "load_schema"]
