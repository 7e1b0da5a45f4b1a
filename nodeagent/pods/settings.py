"""Section ``kubelet``: sources of pod facts that CRI lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from nodeagent.config.validation import OptionalPath, Section, Switch, about, form
from nodeagent.errors import ConfigError
from nodeagent.model.kubernetes import KubeletAccess
from nodeagent.record import Record


class KubeletSettings(Record):
    """Validated settings of the sources of pod facts beyond CRI.

    Attributes:
        access: access to the kubelet API; ``None`` disables.
        manifests: directory of static pod manifests; ``None`` disables.
        node_name: suffix of static pod names; empty for the host name.
    """

    access: KubeletAccess | None = None
    manifests: Path | None = None
    node_name: str = ""


class KubeletSection(Section):
    """Sources of pod facts that CRI lacks: priorities, requests, limits and grace periods."""

    url: Annotated[
        str,
        form("https://HOST:10250 or http://HOST:10255"),
        about(
            "URL of the kubelet API, source of /pods. Empty disables. Priorities are read only over https with TLS "
            "verification. A server on this node must run as root."
        ),
    ] = ""
    token_file: Annotated[
        OptionalPath,
        about(
            "File with a bearer token for the kubelet API; rejected with insecure = true, since any server would "
            "receive the token."
        ),
    ] = ""
    certificate_file: Annotated[
        OptionalPath, about("File with a client certificate for the kubelet API, PEM, optionally with its key.")
    ] = ""
    key_file: Annotated[
        OptionalPath, about("File with the key of the client certificate. Empty: in certificate_file.")
    ] = ""
    ca_file: Annotated[
        OptionalPath,
        about("File with the CA certificates for the kubelet API. Empty: the CA certificates of the system."),
    ] = ""
    server_name: Annotated[
        str, form("host name"), about("Server name in the kubelet's certificate. Empty: the host of the URL.")
    ] = ""
    insecure: Annotated[Switch, about("Skip TLS verification of the kubelet API.")] = False
    manifests: Annotated[OptionalPath, about("Directory of static pod manifests. Empty disables.")] = (
        "/etc/kubernetes/manifests"
    )
    node_name: Annotated[
        str, form("name"), about("Node name, the suffix of static pod names. Empty: the host name.")
    ] = ""

    def __post_init__(self) -> None:
        try:
            self._access()
        except ConfigError as error:
            raise ValueError(str(error)) from error

    def settings(self) -> KubeletSettings:
        """Return the settings of a valid section."""
        return KubeletSettings(self._access(), Path(self.manifests) if self.manifests else None, self.node_name)

    def _access(self) -> KubeletAccess | None:
        """Return the access to the kubelet API; ``None`` if the access is disabled.

        Raises:
            ConfigError: the URL is invalid, or the settings contradict each other.
        """
        if not self.url:
            return None
        files = (self.token_file, self.certificate_file, self.key_file, self.ca_file)
        token, certificate, key, authority = (Path(each) if each else None for each in files)
        return KubeletAccess(
            self.url, token, certificate, key, authority, server_name=self.server_name, insecure=self.insecure
        )
