"""The words by which the command line, the sink and the journal's plan name splits."""

from __future__ import annotations

LETTER = "letter"  # equal ranges of the first letter: A–M and N–Z for two streams
HASH = "hash"  # CRC-32, for texts that are not spread over the alphabet
INDEX = "index"  # rows in turn, for recordings of one symbol; its order is then kept only per stream
RANGES, TABLE = "ranges:", "table:"
ANY = b"*"  # in a table: every value that has no line of its own
SYMBOL = "symbol"  # the column that splits divide if the user names none
