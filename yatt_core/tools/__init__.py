"""Tools that a policy may call between its turns: the functions, and the process that they run in."""
