"""Pod facts and their precedence: API server, kubelet, static manifests, runtime.

``facts`` finds the definitions of a pod, merges the facts of all sources, and derives missing facts from cgroups and
OOM scores; ``deletion`` determines whether a pod is deleted, ``role`` whether a kubelet manages the node.

Labels and annotations are tenant input: they identify a pod but grant no privilege.
"""
