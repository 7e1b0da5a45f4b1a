"""The host's own facts and files: filesystems, pod logs, boot, kubelet, and the lock between processes.

Readers take a root where tests need one. Deletion happens only in ``podlogs``, through directory descriptors, so that
no symlink is followed and no mount is crossed.
"""
