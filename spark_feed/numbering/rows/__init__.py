"""Rows of a recording become packets of source streams. Pure, apart from the compiled kernels' cache."""
