"""The transport engine: datagrams, sealing, secured calls and the shell of a process. No decision about a sequence
number is taken here."""
