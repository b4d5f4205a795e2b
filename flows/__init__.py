"""The workflow of a run: Prefect flows and tasks, the driver session, recovery. Only this package imports Prefect."""
