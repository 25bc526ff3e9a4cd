"""Compiled code: what appenders and readers run per record or segment, and the cache of compiled kernels."""
