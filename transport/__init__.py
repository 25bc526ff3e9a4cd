"""The transport engine: datagrams, sealing, secured calls and the shell of a process. It decides nothing about
sequence numbers."""
