"""Application messages as tables: the Arrow columns of a message model, for every part that writes or returns tables.

Imports feedcore only. Invariant: a message has the same columns wherever it becomes a table.
"""
