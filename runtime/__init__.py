"""What every process needs from its operating system, each in one place: durable files, threads, signals, ZeroMQ
contexts.

It imports no other package of this project.
"""
