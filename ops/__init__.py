"""What operators work with.

That is the command line, dashboard, service group and metrics, and the services that flows report to.
"""
