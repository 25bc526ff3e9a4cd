"""Conversion: converter tables, compiled once into a kernel that converts a whole source packet per call.

Pure: it uses no clock, and no file after loading. Adapters run `CompiledConverter`. `InterpretedConverter` runs the
same table in plain Python; the tests compare the two.
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
