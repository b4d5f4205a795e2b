"""Commands about pipelines: `pipeline run`, `pipeline resume`, `pipeline show`, `pipeline list`, `pipeline backfill`."""
