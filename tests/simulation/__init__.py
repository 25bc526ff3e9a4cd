"""The deterministic simulator: virtual time and a virtual network around the production cores. One seed is one run."""
