"""Conversion: converter tables, compiled once into a kernel that converts a whole source packet per call.

Pure: it uses no clock, and no file after loading. Adapters run `CompiledConverter`. The tests compare
it with an interpreter of the same table (`tests/conversion/oracle`).
"""

from tandemfeed.adapter.conversion.compiled import CompiledConverter
from tandemfeed.adapter.conversion.loading.converter_loading import load_converter
from tandemfeed.adapter.conversion.loading.table_loading import load_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.adapter.conversion.table.user_functions import converter_function

__all__ = [
    "CompiledConverter",
    "ConverterTable",
    "converter_function",
    "load_converter",
    "load_table",
]
