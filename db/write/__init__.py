"""The transactions: each module writes one kind of record, and reads back what a driver needs of it."""
