"""The drivers of the queue's runs as processes, and how runs get into the queue."""
