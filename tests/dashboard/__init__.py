"""Dashboard campaign: a Prometheus scrapes two daemons and evaluates every query of every panel."""
