"""Where the flow of deployed pipelines was before it moved to `ops/pipelines`."""
