"""Shared test support: a private, real containerd, generated images, and pods.

``images`` writes archives, ``containerd`` runs a private daemon and removes its resources at the end, ``rootfs`` builds
other versions of it, ``pods`` calls CRI in place of the kubelet, ``vm`` boots a whole node. Only
``stuck_daemon`` imports the package under test, so that all others report independent observations.
"""
