"""Pod from the manifest printed by the agent, run through CRI as the kubelet runs a static pod.

Host directories such as ``/var/log/pods`` are replaced by directories of the test, which have the same path on the host
and in the container, as in the manifest. All other fields are used as in the manifest: mounts, propagation, user,
capabilities, seccomp, read-only root, PID and network namespaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import reclaim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.cri_messages import Document
    from tests.support.pods import Container, Pods, Sandbox

_HOST_TO_CONTAINER = 1


class ManifestPod:
    """Pod of a printed manifest."""

    def __init__(self, pods: Pods, manifest: Document, directories: Mapping[str, Path]) -> None:
        """Run the sandbox of the pod.

        Args:
            pods: CRI client that creates the pod.
            manifest: the printed pod manifest.
            directories: replacements of host directories, by path in the manifest.
        """
        self._pods = pods
        self._spec: Document = manifest["spec"]
        (self._container,) = self._spec["containers"]
        self._directories = {name: str(path) for name, path in directories.items()}
        self._attempt = 0
        assert self._spec["hostNetwork"]
        self.sandbox: Sandbox = pods.run_sandbox(
            manifest["metadata"]["name"],
            namespace=manifest["metadata"]["namespace"],
            host_pid=self._spec["hostPID"],
        )

    def start(self, command: Sequence[str]) -> Container:
        """Start the container of the manifest with another command."""
        self._attempt += 1
        for name in self._paths().values():
            if not Path(name).is_file():
                Path(name).mkdir(parents=True, exist_ok=True)
        container = self._pods.create_container(
            self.sandbox,
            self._container["name"],
            self._container["image"],
            command,
            attempt=self._attempt,
            more_mounts=[
                self._mount(each) for each in self._container["volumeMounts"] if each["name"] in self._paths()
            ],
            security=self._security(),
        )
        self._pods.start(container)
        return container

    def run(self, command: Sequence[str], *, timeout_s: float = 120) -> tuple[int, str, str]:
        """Run a command in a new container until it exits; return exit code, standard output and standard error."""
        container = self.start(command)
        code = self._pods.wait_exited(container, timeout_s=timeout_s).exit_code
        assert container.log_file is not None
        return code, read_log(container.log_file, "stdout"), read_log(container.log_file, "stderr")

    def remove(self) -> None:
        """Stop and remove the pod."""
        self._pods.remove_sandbox(self.sandbox)

    def _paths(self) -> dict[str, str]:
        """Return the host directory of each hostPath volume, by volume name."""
        found = {each["name"]: each["hostPath"]["path"] for each in self._spec["volumes"] if "hostPath" in each}
        return {name: self._directories.get(path, path) for name, path in found.items()}

    def _mount(self, mount: Document) -> Document:
        propagation = _HOST_TO_CONTAINER if mount.get("mountPropagation") == "HostToContainer" else 0
        return {
            "host_path": self._paths()[mount["name"]],
            "container_path": self._directories.get(mount["mountPath"], mount["mountPath"]),
            "readonly": mount["readOnly"],
            "propagation": propagation,
        }

    def _security(self) -> dict[str, Any]:
        context = self._container["securityContext"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        return {
            "privileged": context["privileged"],
            "run_as_user": {"value": context["runAsUser"]},
            "run_as_group": {"value": context["runAsGroup"]},
            "readonly_rootfs": context["readOnlyRootFilesystem"],
            "no_new_privs": not context["allowPrivilegeEscalation"],
            "capabilities": {
                "add_capabilities": context["capabilities"]["add"],
                "drop_capabilities": context["capabilities"]["drop"],
            },
            "seccomp": {"profile_type": 0},
        }


def read_log(path: Path, stream: str) -> str:
    """Wait until a container's log is complete; return the text of one of its streams.

    Source: CRI log format: time, stream, ``P`` for a partial line or ``F`` for a full line or its end, text.
    """
    reclaim.poll(f"the log {path} exists", path.exists)
    text = []
    for line in path.read_text().splitlines():
        _, name, tag, content = line.split(" ", 3)
        if name == stream:
            text.append(content + ("\n" if tag == "F" else ""))
    return "".join(text)
