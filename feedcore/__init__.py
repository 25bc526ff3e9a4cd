"""Everything two sides must agree on: words, packet codecs and the sans-I/O cores.

Nothing here reads a clock, opens a socket or a file, starts a thread or draws a random number: events come in with
`now_ns`, ordered effects go out. Standard library and numpy only.
"""
