"""The Grafana dashboard, the Prometheus alert rules, and how both are installed."""
