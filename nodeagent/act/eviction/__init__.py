"""Eviction steps: node-level reclaim, stop of a pod, and removal of its containers."""
