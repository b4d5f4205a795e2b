"""The workflow of a run: Prefect flows and tasks, the driver, recovery. The only package that imports Prefect."""
