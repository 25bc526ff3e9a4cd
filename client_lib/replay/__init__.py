"""Missed packets and history, from the adapters' replay services."""
