"""How many feeds, adapters, executors and how much bandwidth a load needs, computed from measured costs."""
