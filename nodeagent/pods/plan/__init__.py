"""Pod facts and their precedence: API server, kubelet, static manifests, runtime.

``definitions`` finds the definitions of a pod, ``facts`` merges the facts of all sources, ``inference`` derives missing
facts from cgroups and OOM scores, ``deletion`` determines whether a pod is deleted.

Labels and annotations are tenant input: they identify a pod but grant no privilege.
"""
