"""Commands to use before a run: check the machine (`doctor`), predict cost (`plan`), print the schema (`schema`)."""
