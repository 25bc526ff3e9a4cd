"""Simple Binary Encoding 1.0 of the FIX standard: message schemas and the layout of their messages.

`load_schema` reads a schema; `Block.dtype` gives the fixed part of a message or group entry as a numpy structure.
`client_lib.messages.sbe_reading` turns messages into plain Python values.
"""

from tandemfeed.feedcore.sbe.loading import load_schema
from tandemfeed.feedcore.sbe.messages import Schema

__all__ = ["Schema", "load_schema"]
