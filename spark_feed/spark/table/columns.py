"""Which columns of a table a query reads: by the option `columns`, or by the user's schema."""

from __future__ import annotations

from typing import Any

from tandemfeed.spark_feed.spark.errors import TableError


def chosen_columns(schema: Any, names: str) -> Any:
    """The columns that the option `columns` lists, separated by commas; empty: all.

    Raises:
        TableError: there is no such column.
    """
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        return schema
    for name in chosen:
        if name not in schema.fieldNames():
            raise TableError(f"option 'columns': no column {name!r}; the columns are {', '.join(schema.fieldNames())}")
    return type(schema)([schema[name] for name in chosen])


def check_columns(wanted: Any, schema: Any) -> None:
    """Check the columns of a user's schema.

    Raises:
        TableError: a column does not exist or has another type.
    """
    for field in wanted:
        if field.name not in schema.fieldNames():
            raise TableError(f"schema: no column {field.name!r}; the columns are {', '.join(schema.fieldNames())}")
        found = schema[field.name].dataType
        if field.dataType != found:
            raise TableError(
                f"schema: column {field.name} is {found.simpleString()}, not {field.dataType.simpleString()}"
            )
