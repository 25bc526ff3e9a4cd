"""Conversion: converter tables, compiled once into a kernel that turns a whole source packet at a time.

Pure: no clock, no file after loading. Adapters run `CompiledConverter`; `InterpretedConverter` runs the same
table in plain Python, as the oracle of the tests.
"""

from tandemfeed.adapter.conversion.compiled import CompiledConverter
from tandemfeed.adapter.conversion.interpreted import InterpretedConverter
from tandemfeed.adapter.conversion.loading import load_converter
from tandemfeed.adapter.conversion.table import ConverterTable
from tandemfeed.adapter.conversion.table_loading import load_table
from tandemfeed.adapter.conversion.user_functions import converter_function

__all__ = [
    "CompiledConverter",
    "ConverterTable",
    "InterpretedConverter",
    "converter_function",
    "load_converter",
    "load_table",
]
