"""The tools of operators: command line, dashboard, service group and metrics.

Also contains the integrations with the services that flows report to, such as MLflow.
"""
