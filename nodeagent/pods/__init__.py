"""Pods of the node: their facts from every source, whether a pod is deleted, and the role of the agent.

``reader`` combines pod facts from the API server, the kubelet, static manifests and the runtime; ``role`` evaluates
whether a kubelet manages the node. The rules are in ``plan``.
"""
