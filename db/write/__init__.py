"""The transactions: each module books one kind of thing, and reads back what a driver needs of it."""
