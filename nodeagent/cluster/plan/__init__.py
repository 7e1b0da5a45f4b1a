"""Plans for a node in a Kubernetes cluster: registration, heartbeats, pod watch, evictions, Events."""
