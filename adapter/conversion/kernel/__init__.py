"""A table as the generated source of a kernel, and the functions that generated kernels call."""
