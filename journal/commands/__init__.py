"""`tandemfeed journal`: a journal read, checked and looked after from the command line. A module per group of them.

Each module has `add_to(subcommands)`, which says what it takes, and a function `(arguments, streams) -> exit status`;
what it prints goes to the streams it is given.
"""
