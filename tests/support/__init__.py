"""What the tests share: a real containerd of one's own, images made from nothing, and pods on them.

``images`` writes archives, ``containerd`` runs a private daemon and removes everything at the end, ``rootfs`` gives
other versions of it, ``pods`` has the kubelet's role in CRI, ``vm`` boots a whole node. Only
``stuck_daemon`` imports the package under test, so that all others report independent observations.
"""
