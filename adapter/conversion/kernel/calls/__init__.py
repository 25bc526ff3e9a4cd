"""Users' functions that are called once per packet, and the kernels that gather their arguments."""
