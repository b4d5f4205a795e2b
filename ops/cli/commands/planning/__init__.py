"""Commands for before a run: check the machine (`doctor`), predict cost (`plan`), print the spec's schema (`schema`)."""
