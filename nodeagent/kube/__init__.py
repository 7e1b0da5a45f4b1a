"""Clients of the Kubernetes API server and the kubelet API, and the reader of static pod manifests.

CRI reports neither pod priorities nor resource requests. The API server, the kubelet and static manifests provide both
in Pod documents, which one parser reads (``podspec``). The parser rejects malformed fields, because a wrong value could
cause the eviction of the wrong pod.

Rejected: the Kubernetes client package (a hundred megabytes), and a watch of the kubelet (its API does not offer one).
"""
