"""Access to the host: filesystems, cgroups, pod logs and volumes, boot, kubelet, locks, systemd, and logind's files.

Readers have a parameter for the root directory, which tests replace. Log files are deleted only in ``pod_logs``,
through directory descriptors, so that no symbolic link is followed and no mount is crossed.

logind is called with plain messages on the system bus (``dbus``, and ``shutdown.logind``). Proxies
generated from introspection were rejected for three calls and two signals. The configuration files of logind are read
as well (``logind_config``), since a running logind reports its limit but not the file that set it.
"""
