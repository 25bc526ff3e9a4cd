"""The lines of a generated kernel: what each part of a table becomes."""
