"""Ray as a run uses it: the head and the connection to it, nodes, devices and their reservation, values taken out of it."""
