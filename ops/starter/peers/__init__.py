"""Reads a run's configuration of verl, TRL or OpenRLHF, and says in a spec what it means and what it cannot mean here."""
