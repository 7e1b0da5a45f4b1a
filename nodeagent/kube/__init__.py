"""Pod specs from the kubelet API and from static manifests.

The runtime has neither priorities nor requests; the kubelet has both, and on a node without one a static manifest may.
Both sources use the same documents and share one parser (``podspec``). It refuses malformed fields, since a pod with
wrong facts could be evicted wrongly.

Rejected: the Kubernetes client package (a hundred megabytes for one GET), and a watch (not offered by the kubelet).
"""
