"""Write a message model's classes as a Python module, so that editors complete the fields of messages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tandemfeed.client_lib.messages.message import load_messages
from tandemfeed.feedcore.documents.xml_document import DocumentError

EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns 0, or 2 if the model cannot be used."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed stubs", description=__doc__)
    parser.add_argument("model", type=Path, help="the message model: an SBE message schema (XML)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the module to write (default: print it)")
    arguments = parser.parse_args(argv)
    try:
        text = load_messages(arguments.model).stubs()
        if arguments.output is None:
            sys.stdout.write(text)
        else:
            arguments.output.write_text(text)
    except (DocumentError, OSError) as refused:
        print(f"tandemfeed stubs: {refused}", file=sys.stderr)
        return EXIT_REFUSED
    return 0
