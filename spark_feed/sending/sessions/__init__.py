"""The sessions of a source gateway: which one it sends, where its journal is, and what is kept of it."""
