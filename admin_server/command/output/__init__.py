"""How results look: tables, pages, times, and JSON."""
