"""The host's own facts and files: filesystems, cgroups, pods' logs and volumes, boot, kubelet, locks, and logind.

Readers take a root where tests need one. Deletion happens only in ``podlogs``, through directory descriptors, so that
no symlink is followed and no mount is crossed.

logind is spoken to by plain messages on the system bus (``dbus``, ``login1``, ``logind``), without proxies made from
introspection: three calls and two signals need none, and a descriptor in an answer is easier to account for. What is
set in its files is read apart from that (``logind_config``), because the running logind tells the limit but not who
set it.
"""
