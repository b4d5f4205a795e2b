"""How a run uses Ray: the head and the connection to it, nodes, devices and their reservation, and fetching values."""
