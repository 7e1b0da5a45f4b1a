"""Metrics and health over HTTP: ``/metrics``, ``/healthz`` and ``/readyz``.

The server parses requests itself: an HTTP library costs more memory than the whole endpoint, and three fixed pages need
no router.
"""
