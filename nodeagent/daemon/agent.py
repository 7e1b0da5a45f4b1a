"""Composition: from a configuration to an agent that can observe, plan and act.

The daemon and the one-shot commands are composed by the same function, so that they cannot differ.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.act.collect import Collector
from nodeagent.act.logs import HostLogs
from nodeagent.act.reader import RuntimeReader
from nodeagent.act.removers import (
    ContainerRemover,
    ImageRemover,
    LogLinkRemover,
    PodLogRemover,
    SandboxRemover,
)
from nodeagent.clock import SystemClock
from nodeagent.config.policies import policies
from nodeagent.host.filesystems import read_filesystem
from nodeagent.host.lock import PassLock
from nodeagent.host.node import boot_id, booted_at, find_kubelet
from nodeagent.model import Role
from nodeagent.observe import Observer, ObserverSettings
from nodeagent.plan.decision import ItemKind
from nodeagent.runtime.connection import RuntimeConnection, discover_endpoint
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.cri import CriClient
from nodeagent.runtime.layers import LayerCache
from nodeagent.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from datetime import datetime

    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.carry_out import Remover
    from nodeagent.act.collect import Preview
    from nodeagent.act.outcomes import PassReport, Result
    from nodeagent.clock import Clock
    from nodeagent.config import Config
    from nodeagent.model import FsObservation, ImageUsage, NodeSnapshot
    from nodeagent.plan.gc import GCPolicy
