"""Decisions of a node in a Kubernetes cluster: registration, heartbeats, back-off."""
