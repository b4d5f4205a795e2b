"""The driver session: context, threads, actors, checkpoints, guards, deadlines, and how a session ends."""
