"""Observation: one reader for each fact, shared by planners, status and metrics.

``node_snapshot`` reads runtime, filesystems and pod logs into an immutable snapshot, with ``images`` for its image part
and ``item_details`` for facts that the lists of CRI lack; ``pods`` combines pod facts from kubelet, static manifests
and runtime; ``eviction_signals`` reads the kernel's figures; ``node_role`` evaluates whether a kubelet manages the
node; ``storage_usage`` measures the usage of the image filesystem by category.

Readers return values of :mod:`nodeagent.model` and change nothing on the node. An incomplete reading is marked as such,
and planners treat it as a lower bound.
"""
