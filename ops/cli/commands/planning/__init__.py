"""Before a run: is the machine ready (`doctor`), what would a spec take (`plan`), what may stand in it (`schema`)."""
