"""Everything two sides must agree on: words, packet codecs and the sans-I/O cores.

Nothing here reads a clock, opens a socket or a file, starts a thread or draws a random number: a core takes events with
`now_ns` and returns ordered effects. Standard library and numpy only.
"""
