"""One observation of the node for its status: machine, nodefs, runtime, images and pressure."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent import __version__
from nodeagent.cluster.plan.node_status import NodeStatusPolicy
from nodeagent.cluster.plan.registration import unproven_because
from nodeagent.cluster.settings import parse_labels
from nodeagent.config.files import open_trusted
from nodeagent.errors import ApiServerRefusedError, ConfigError, NodeAgentError, ObservationError
from nodeagent.eviction.signals import nodefs_path
from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.host.filesystems import read_filesystem
from nodeagent.host.machine import read_machine
from nodeagent.host.node import node_name
from nodeagent.model.kubernetes import Node, NodeFacts

if TYPE_CHECKING:
    from nodeagent.kube.api_client import NodeApi
    from nodeagent.model.pressure import NodeCondition
    from nodeagent.model.runtime import Image
    from nodeagent.runtime.cri import CriClient
    from nodeagent.settings.settings import Settings
    from nodeagent.telemetry.logging import StateLog
    from nodeagent.units import Clock

RUNTIME_DOWN: Final = "container runtime is down"
"""Reason of a not ready node while the runtime does not answer. Source: kubelet ``runtimeState.runtimeErrors``."""
_RUNTIME_WITHIN_S: Final = 10.0
_READ_WITHIN_S: Final = 2.0
_MAX_LABEL_BYTES: Final = 64 << 10
_VERSION: Final = re.compile(r"\s*v?([0-9]{1,18}(?:\.[0-9]{1,18})+)")
_SEMANTIC_SUFFIX: Final = re.compile(
    r"(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?\s*", re.ASCII
)


class NodeFactsReader:
    """Reader of the facts for the node status; unreadable parts are omitted."""

    def __init__(self, settings: Settings, clock: Clock, *, root: Path = Path("/")) -> None:
        """Create a reader.

        Args:
            settings: name of the node and directory of pod logs, which determines nodefs.
            clock: dates the observation.
            root: parent of ``etc``, ``proc`` and ``sys``.
        """
        self._settings = settings
        self._clock = clock
        self._root = root
        self._nodefs = GuardedCall[int | None]()

    async def read(
        self,
        cri: CriClient | None,
        pressure: frozenset[NodeCondition] | None,
        *,
        not_ready: tuple[str, ...] = (),
    ) -> NodeFacts:
        """Return the current facts for the node status.

        Args:
            cri: client of the runtime; ``None`` while the runtime is unavailable.
            pressure: active pressure conditions; ``None`` if thresholds are not evaluated.
            not_ready: reasons that the node is not ready, in addition to the reasons of the runtime.
        """
        machine = await asyncio.to_thread(read_machine, self._root)
        version, problems, images, error = await _read_runtime(cri)
        return NodeFacts(
            name=node_name(self._settings.kubelet.node_name),
            machine=machine,
            observed_at=self._clock.now(),
            ephemeral_bytes=await self._read_nodefs(),
            runtime_version=version,
            not_ready=(*problems, *not_ready),
            images=images,
            pressure=pressure,
            agent_version=__version__,
            unread=(*machine.unread, *((error,) if error else ())),
        )

    async def _read_nodefs(self) -> int | None:
        """Return the size of nodefs in bytes; ``None`` while nodefs does not answer. Occupies at most one thread."""
        try:
            return await self._nodefs.run(self._nodefs_bytes, within_s=_READ_WITHIN_S)
        except HangingCallError:
            return None

    def _nodefs_bytes(self) -> int | None:
        try:
            return read_filesystem(nodefs_path(self._settings.pod_log_root), self._clock).capacity_bytes
        except ObservationError:
            return None


async def _read_runtime(cri: CriClient | None) -> tuple[str, tuple[str, ...], tuple[Image, ...] | None, str]:
    """Return version, reasons of not being ready, images and error of the runtime; images are ``None`` after an error.

    Source: kubelet ``ReadyCondition``: a condition of the runtime that is false, with its reason and message.
    """
    if cri is None:
        return "", (RUNTIME_DOWN,), None, ""
    try:
        async with asyncio.timeout(_RUNTIME_WITHIN_S):
            info, status, images = await cri.version(), await cri.status(), await cri.list_images()
    except (NodeAgentError, TimeoutError) as error:
        return "", (RUNTIME_DOWN,), None, str(error) or f"runtime: no answer in {_RUNTIME_WITHIN_S:g} s"
    return f"{info.name}://{plain_version(info.version)}", tuple(map(_not_ready, status.problems)), images, ""


def plain_version(text: str) -> str:
    """Return a version as the kubelet reports it: numbers, and a suffix only of a semantic version.

    ``v1.7.2`` is ``1.7.2``, and ``1.6.20~ds1`` of Debian is ``1.6.20``. Another text is returned unchanged.

    Source: kubelet ``newRuntimeVersion``, apimachinery ``version.ParseSemantic`` and ``ParseGeneric``.
    """
    found = _VERSION.match(text)
    if found is None:
        return text
    parts, suffix = found[1].split("."), text[found.end() :]
    numbers = [str(int(each)) for each in parts]
    is_semantic = len(parts) == 3 and numbers == parts and _SEMANTIC_SUFFIX.fullmatch(suffix)
    return ".".join(numbers) + (suffix.rstrip() if is_semantic else "")


def _not_ready(problem: str) -> str:
    """Return the kubelet's message for a false runtime condition such as ``NetworkReady: Reason: Message``."""
    condition, _, rest = problem.partition(": ")
    reason, _, message = rest.partition(": ")
    part = "runtime network" if condition == "NetworkReady" else "runtime"
    return f"container {part} not ready: {condition}=false reason:{reason} message:{message}"


class LabelReader:
    """Reader of the configured labels: those of the settings, and those of a file, which take precedence."""

    def __init__(self, labels: Mapping[str, str], file: Path | None, states: StateLog) -> None:
        """Create a reader; ``file`` is ``None`` without a file, ``states`` logs an unreadable file."""
        self._labels = labels
        self._file = file
        self._states = states
        self._guard = GuardedCall[dict[str, str]]()

    async def read(self) -> Mapping[str, str] | None:
        """Return the labels; ``None`` while the file is unreadable, which is logged. Occupies at most one thread."""
        if self._file is None:
            return self._labels
        try:
            found = await self._guard.run(partial(read_label_file, self._file), within_s=_READ_WITHIN_S)
        except (ConfigError, HangingCallError) as error:
            notice = f"kubernetes.labels_file: {error}; labels of the node are not changed"
            self._states.log_once("store_notice", {"notice": notice}, state=notice)
            return None
        self._states.end("store_notice")
        return {**self._labels, **found}


def read_label_file(path: Path) -> dict[str, str]:
    """Return the labels in a file with a line ``NAME=VALUE`` each. Comments start with ``#``.

    Raises:
        ConfigError: the file cannot be read, is not trusted or too large, or a line is invalid.
    """
    try:
        with open(open_trusted(path), "rb") as file:  # noqa: PTH123 - opens a descriptor, not a path
            content = file.read(_MAX_LABEL_BYTES + 1)
        if len(content) > _MAX_LABEL_BYTES:
            raise ConfigError(f"{path}: larger than {_MAX_LABEL_BYTES >> 10} KiB")
        lines = content.decode("ascii").splitlines()
        return parse_labels(",".join(each for each in lines if not each.lstrip().startswith("#")))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


_FORBIDDEN: Final = 403


async def read_foreign(nodes: NodeApi) -> str:
    """Return the reason that the Node object is not proven to be of this machine; empty with proof.

    Raises:
        ApiServerError: the API server does not answer, or refuses the request with a status other than 403.
    """
    try:
        found = await nodes.get_node()
    except ApiServerRefusedError as error:
        if error.status != _FORBIDDEN:
            raise
        return f"cannot read the Node object: {error}"
    return await compare_with_machine(found)


async def compare_with_machine(found: Node | None) -> str:
    """Return the reason that a Node object is not proven to be of this machine; empty with proof."""
    machine = await asyncio.to_thread(read_machine)
    return unproven_because(found, machine.machine_id, machine.system_uuid)


def status_policy(settings: Settings) -> NodeStatusPolicy:
    """Return the node status policy: reservation, maximum number of pods, addresses and eviction thresholds."""
    chosen = settings.kubernetes
    return NodeStatusPolicy(
        chosen.reservation, chosen.max_pods, chosen.node_ips, chosen.addresses, settings.eviction.thresholds
    )
