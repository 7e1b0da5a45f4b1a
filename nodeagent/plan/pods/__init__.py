"""Pod facts and their precedence: kubelet, static manifests, runtime.

``facts`` merges what the sources say about a pod, ``deletion`` and ``inference`` decide whether a pod was deleted.
Labels and annotations are tenant input: they identify a pod and grant nothing.
"""
