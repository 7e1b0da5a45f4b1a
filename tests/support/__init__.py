"""Shared test support: private real containerds, generated images, pods and virtual machines.

``images`` writes archives, ``containerd`` runs a private containerd and removes its resources at the end, ``rootfs``
builds root filesystems with other containerd versions, ``pods`` calls CRI in place of the kubelet, and ``vm`` boots a
virtual machine. These modules do not import the package under test, so that their observations are independent of it.
"""
