"""Tools that a policy may call between its turns: the functions, and the process in which they run."""
