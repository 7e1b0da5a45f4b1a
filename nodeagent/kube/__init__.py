"""Pod specs from the kubelet API and from static manifests.

The runtime has neither priorities nor requests; the kubelet has both, and without a kubelet static manifests may have
them. Both sources use the same documents and share one parser (``podspec``). It refuses malformed fields, since wrong
facts could lead to a wrong eviction.

Rejected: the Kubernetes client package (a hundred megabytes for one GET), and a watch (not offered by the kubelet).
"""
