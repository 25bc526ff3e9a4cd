"""The stream administration server: authenticates, authorises, brokers streams and keys, grants leases and epochs.

Application messages never pass through it.
"""
