"""Application messages as tables: the Arrow columns of a message model, for files, for Spark and for clients.

Imports feedcore only. Invariant: a message has the same columns wherever it becomes a table; only enumerations may be
shown by name.
"""
