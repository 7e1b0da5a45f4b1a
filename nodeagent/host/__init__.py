"""Facts and files of the host: filesystems, cgroups, pod logs and volumes, boot, kubelet, locks, systemd and logind.

Readers take a root directory where tests need one. Log files are deleted in ``podlogs`` only, through directory
descriptors, so that no symbolic link is followed and no mount is crossed.

logind is called with plain messages on the system bus (``dbus``, ``login1``, ``logind``), without proxies generated
from introspection: three calls and two signals need none. Its files are read in addition (``logind_config``), since a
running logind reports the limit but not the file that set it.
"""
