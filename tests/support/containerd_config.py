"""Configuration file of a private containerd, for its major versions 1 and 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ROOT = "root"
STATE = "state"
SOCKET = "containerd.sock"
REGISTRIES = "certs.d"


def config_text(major: int, base: Path, sandbox_image: str, extra: str) -> str:
    """Return the configuration for a major version, with all files below ``base``, followed by ``extra``."""
    unused = ("aufs", "btrfs", "devmapper", "zfs", "blockfile", "erofs")
    disabled = [f"io.containerd.snapshotter.v1.{name}" for name in unused]
    common = f"""\
root = "{base / ROOT}"
state = "{base / STATE}"
disabled_plugins = {disabled}
[grpc]
  address = "{base / SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{base}/opt"
"""
    cni = f'"{base}/cni"'
    if major >= 2:
        return f"""\
version = 3
{common}
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{base / REGISTRIES}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{sandbox_image}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [{cni}]
  conf_dir = {cni}
{extra}
"""
    return f"""\
version = 2
{common}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = {cni}
  conf_dir = {cni}
{extra}
"""
