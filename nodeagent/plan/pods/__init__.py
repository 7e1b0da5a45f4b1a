"""Pod facts and their precedence: kubelet, static manifests, runtime.

``definitions`` finds the definitions of a pod, ``facts`` merges the facts of all sources about it, ``inference``
derives missing facts from the runtime, ``deletion`` infers whether a pod was deleted.
Labels and annotations are tenant input: they identify a pod and grant no privilege.
"""
