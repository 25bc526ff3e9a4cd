"""Users' files as recordings: `ingesting` chooses a reader for each file, and writes what the readers make.

`tick_reader`, `format_reader` and `dbn_reader` make tables of a recording. The first two read a `column_file`, a batch
at a time, by the steps of `file_reader`.

Invariant: a file is never whole in memory, and the recording does not depend on how it is cut into batches.
"""
