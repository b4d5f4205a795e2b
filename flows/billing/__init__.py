"""What runs are charged: the records that drivers write, the totals of runs, and budgets over several runs."""
