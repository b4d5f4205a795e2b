"""Commands about pipelines: `pipeline run`, `resume`, `show`, `list`, `deploy` and `backfill`."""
