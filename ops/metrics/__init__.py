"""Metrics for Prometheus, alert rules over them, and Grafana dashboards of them."""
