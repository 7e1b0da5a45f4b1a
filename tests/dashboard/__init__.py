"""The campaign of the dashboard: a Prometheus that scrapes two daemons, and every query of every panel."""
