"""Metrics for Prometheus, with alert rules and Grafana dashboards for them."""
