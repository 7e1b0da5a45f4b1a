"""Observation: one reader for each fact, shared by planners, status and metrics.

``node_snapshot`` reads runtime, filesystems and pod logs into an immutable snapshot, with ``images`` for its image part
and ``item_details`` for facts that the lists of CRI lack; ``pods`` combines pod facts from the API server, the kubelet,
static manifests and the runtime; ``eviction_signals`` reads the eviction signals; ``node_role`` evaluates whether a
kubelet manages the node; ``storage_usage`` measures the usage of the image filesystem by category.

Readers return values of :mod:`nodeagent.model` and change nothing on the node. An incomplete reading is marked as
incomplete, and planners treat its values as lower bounds.
"""
