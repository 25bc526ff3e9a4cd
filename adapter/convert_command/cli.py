"""`tandemfeed convert`: check | explain | compile | file | sniff | dead-letters."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.table.user_functions import BadUserFunction
from tandemfeed.adapter.convert_command import compiling, dead_letters, file_task, sniffing
from tandemfeed.adapter.convert_command.documents import Documents, add_document_arguments, load_documents
from tandemfeed.adapter.convert_command.explaining import explain, users_functions
from tandemfeed.adapter.convert_command.input.inputs import READ_ERRORS
from tandemfeed.adapter.convert_command.recordings.independence import InputsContinueEachOther
from tandemfeed.adapter.convert_command.recordings.side_by_side import ConversionFailed
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.journal.commands.options import REFUSALS

REFUSED_HERE = (DocumentError, BadUserFunction, dead_letters.NotADeadLetter, InputsContinueEachOther, ConversionFailed)


def main(argv: Sequence[str] | None = None) -> int:
    """Check the documents of a conversion, explain or compile its table, convert a file, or show refused messages."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed convert", description=main.__doc__)
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    for name, summary in (
        ("check", "load and check the three documents; an error names file, line and reason"),
        ("explain", "print the table as readable text"),
        ("file", "convert a file to SBE, Parquet, Arrow or CSV"),
    ):
        task = tasks.add_parser(name, allow_abbrev=False, help=summary, description=summary)
        add_document_arguments(task)
        if name == "explain":
            task.add_argument("--source", action="store_true", help="print the kernel's generated source instead")
        if name == "file":
            file_task.add_file_arguments(task)
    sniffing.add_to(tasks)
    compiling.add_to(tasks)
    dead_letters.add_to(tasks)
    arguments = parser.parse_args(argv)
    try:
        return _run(parser, arguments)
    except BrokenPipeError:  # the reader of the output has closed it
        raise
    except (*REFUSED_HERE, *READ_ERRORS, *REFUSALS) as refused:
        print(f"convert: {refused}", file=sys.stderr)
        return 2


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.task == "dead-letters":
        return dead_letters.run(arguments)
    if arguments.task == "sniff":
        return sniffing.run(arguments)
    if arguments.task == "compile":
        return compiling.run(parser, arguments)
    documents = load_documents(parser, arguments, arguments.shipped)
    return {"check": _check, "explain": _explain, "file": file_task.run}[arguments.task](documents, arguments)


def _check(documents: Documents, _: argparse.Namespace) -> int:
    table = documents.table
    print(
        f"{table.document}: valid; {len(documents.source_format.messages)} source messages, "
        f"{len(documents.model.schema.messages)} output messages, {len(table.conversions)} conversions"
    )
    for line in users_functions(table):
        print(line)
    for warning in (*documents.source_format.warnings, *documents.model.schema.warnings):
        print(f"warning: {warning}")
    return 0


def _explain(documents: Documents, arguments: argparse.Namespace) -> int:
    if arguments.source:
        print(kernel_source(documents.table).text)
        return 0
    for line in explain(documents.table):
        print(line)
    return 0
