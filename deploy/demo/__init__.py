"""The demo: a recording played through a cluster while the active adapter is killed, and its report."""
