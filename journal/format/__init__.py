"""The files of a journal: layout, blocks, the control file, roll cycles, stored positions, sealing, compression."""
