"""Output journals as tables: which packets count, which tasks read them."""
