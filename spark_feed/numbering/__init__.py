"""The Spark job: assigns ticks to source streams, encodes, numbers and packs them."""
