"""The deterministic simulator: virtual time and network around the production cores. One seed is one run."""
