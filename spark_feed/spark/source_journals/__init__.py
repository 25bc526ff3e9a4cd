"""Source journals as tables."""
