"""Conversion: converter tables, compiled once into a kernel that turns a whole source packet at a time.

Pure: no clock, no file after loading. Adapters run `CompiledConverter`; `InterpretedConverter` runs the same
table in plain Python, as the oracle of the tests.
"""

from adapter.conversion.compiled import CompiledConverter
from adapter.conversion.interpreted import InterpretedConverter
from adapter.conversion.loading import load_converter
from adapter.conversion.table import ConverterTable
from adapter.conversion.table_loading import load_table
from adapter.conversion.user_functions import converter_function

__all__ = [
    "CompiledConverter",
    "ConverterTable",
    "InterpretedConverter",
    "converter_function",
    "load_converter",
    "load_table",
]
