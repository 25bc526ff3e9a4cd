"""How the work of many transactions becomes one flush."""
