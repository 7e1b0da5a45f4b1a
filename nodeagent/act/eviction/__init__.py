"""Carrying out evictions: stopping a pod, removing its containers, and node-level reclaim before it."""
