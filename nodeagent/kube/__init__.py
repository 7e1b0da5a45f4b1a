"""Pods as Kubernetes defines them: from the kubelet's own list and from static manifests.

The runtime knows neither priorities nor requests; the kubelet does, and on a node without one a static manifest may.
Both give the same documents, so one parser (``podspec``) turns them into values, and refuses what it does not
understand rather than guessing: a pod read wrongly could be evicted wrongly.

Decided against: the Kubernetes client package (a hundred megabytes for one GET), and a list that is kept open by a
watch (the kubelet offers none).
"""
