"""The queue as it is seen: its view, its command, its page and routes, and the drivers of its runs."""
