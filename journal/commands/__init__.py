"""`tandemfeed journal`: reads, checks and maintains a journal from the command line. One module per group of commands.

Each module has `add_to(subcommands)`, which adds parsers, and functions `(arguments, streams) -> exit status`, which
print to the given streams.
"""
