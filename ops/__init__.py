"""What operators work with: command line, dashboard, service group, metrics, and the services that the flow reports to."""
