"""HTTP server of the daemon, and its metrics and health endpoint: ``/metrics``, ``/healthz`` and ``/readyz``.

Framing is done by h11; routing and limits are the agent's own, since a web framework uses more memory than the whole
endpoint.
"""
