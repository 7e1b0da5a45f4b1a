"""Pods as Kubernetes defines them: from the kubelet API and from static manifests.

The runtime has neither priorities nor requests; the kubelet has them, and on a node without one a static manifest may.
Both give the same documents, so one parser (``podspec``) turns them into values. It refuses fields that it does not
understand, since a pod read wrongly could be evicted wrongly.

Rejected: the Kubernetes client package (a hundred megabytes for one GET), and a watch (the kubelet offers none).
"""
