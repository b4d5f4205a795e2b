"""Maintenance of a home: what has to be done once a day, whoever drives its runs."""
