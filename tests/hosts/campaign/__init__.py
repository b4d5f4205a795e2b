"""A campaign of host faults against one run on four hosts; `make hosts` runs it."""
