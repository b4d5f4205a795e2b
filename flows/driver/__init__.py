"""The driver session: context, threads, actors, checkpoints, guards, deadlines and the ways it ends."""
