"""What the running agent answers, in the terms in which a command's own look is shown.

A user who may not look by himself, as he is not root, has the agent look if it lets him.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from nodeagent.cli.control_client import DaemonRefusedError, DaemonUnavailableError, understood
from nodeagent.cli.status import connected
from nodeagent.model import FsObservation, Hold, NodeSnapshot, Role
from nodeagent.model.node import RuntimeInfo
from nodeagent.model.node_stop import NodeStop, StopEnd, StopKind, StoppedPod
from nodeagent.plan.decision import Accounting, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.plan.gc.storage_breakdown import Breakdown, Part, Share
from nodeagent.store.history import PastAction, PastPass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from nodeagent.cli.control_client import ControlConnection

    Shown = Mapping[str, Any]

_TIME: Final = "_at"
_PREFIX: Final = "NODEAGENT_"
_NO_SETTINGS: Final = ("NODEAGENT_CONTROL__SOCKET", "NODEAGENT_TEST_", "NODEAGENT_SERVICE_", "NODEAGENT_PORT")


@contextmanager
def by_agent(
    config: Path | None, overrides: Mapping[str, object], *, refusal_matters: bool = True
) -> Iterator[ControlConnection | None]:
    """Return a connection to the agent if it is to be asked; ``None`` if the command looks by itself.

    It is asked by a user other than root, unless a configuration of his own is given, by the environment too, and if
    one runs.

    Args:
        config: file of the configuration.
        overrides: options that go before it.
        refusal_matters: whether the command is of no use to a user who may not ask; else it looks by itself then.

    Raises:
        DaemonRefusedError: an agent runs, and this user may not ask it.
    """
    asked = None
    with ExitStack() as stack:
        if os.geteuid() != 0 and config is None and not overrides and not _configured(os.environ):
            try:
                asked = stack.enter_context(connected(None))
            except DaemonUnavailableError:
                asked = None
            except DaemonRefusedError:
                if refusal_matters:
                    raise
        if asked is None:
            yield None
            return
        with understood():
            yield asked


def _configured(environment: Mapping[str, str]) -> bool:
    """Return whether variables set anything but where the agent listens."""
    return any(name.startswith(_PREFIX) and not name.startswith(_NO_SETTINGS) for name in environment)


def preview(shown: Shown) -> tuple[NodeSnapshot, tuple[Plan, ...]]:
    """Return what a document of schema ``nodeagent/preview/v1`` tells."""
    runtime = shown["runtime"]
    snapshot = NodeSnapshot(
        _moment(shown["observed_at"]),
        RuntimeInfo(runtime["name"], runtime["version"], runtime["api_version"], runtime["endpoint"]),
        Role(runtime["role"]),
        image_filesystem=_filesystem(shown["imagefs"]),
        warnings=tuple(shown["warnings"]),
    )
    return snapshot, tuple(map(_plan, shown["plans"]))


def passes(shown: Shown) -> tuple[PastPass, ...]:
    """Return the passes that a document of schema ``nodeagent/history/v1`` tells of."""
    return tuple(map(_past, shown["passes"]))


def stops(shown: Shown) -> tuple[NodeStop, ...]:
    """Return the times that the node went down that a document of schema ``nodeagent/history/v1`` tells of.

    Of the pods only which they were.
    """
    return tuple(
        NodeStop(
            each["boot_id"],
            StopKind(each["kind"]),
            _moment(each["started_at"]),
            end=StopEnd(each["end"]),
            pods=tuple(StoppedPod(pod["uid"], pod["namespace"], pod["name"]) for pod in each["pods"]),
        )
        for each in shown["node_stops"]
    )


def breakdown(shown: Shown) -> Breakdown:
    """Return the breakdown of the image filesystem that a report carries.

    Raises:
        ValueError: the report has no reading of the filesystem.
    """
    filesystem = _filesystem(shown["imagefs"])
    if filesystem is None:
        raise ValueError("imagefs is null")
    shares = (
        Share(
            Part(each["part"]),
            each["bytes"],
            tuple((member["name"], member["bytes"]) for member in each["largest"]),
            each["complete"],
        )
        for each in shown["shares"]
    )
    return Breakdown(filesystem, tuple(shares), shown["exact"])


def holds(shown: Shown) -> tuple[Hold, ...]:
    """Return the holds that a document of schema ``nodeagent/holds/v1`` tells of."""
    return tuple(map(hold, shown["holds"]))


def hold(shown: Shown) -> Hold:
    """Return the hold that a document tells of."""
    times = (_moment(shown["placed_at"]), _moment(shown["until"]))
    return Hold(shown["id"], shown["image"] or "", shown["why"], shown["by"], *times)


def _plan(shown: Shown) -> Plan:
    return Plan(
        shown["kind"],
        _moment(shown["made_at"]),
        tuple(map(_decision, shown["decisions"])),
        Accounting(shown["accounting"]),
        shown["wanted_bytes"],
        shown["pending_bytes"],
        tuple(shown["warnings"]),
        shown["blocked"],
    )


def _decision(shown: Shown) -> Decision:
    reason = shown["reason"]
    return Decision(
        ItemKind(shown["kind"]),
        shown["id"],
        shown["name"],
        Verdict(shown["verdict"]),
        Reason(ReasonCode(reason["code"]), {key: _detail(key, each) for key, each in reason["details"].items()}),
        shown["frees_bytes"],
        shown["frees_inodes"],
    )


def _detail(key: str, value: Any) -> Any:  # noqa: ANN401 - of a document
    if isinstance(value, list):
        return tuple(map(str, value))
    return _moment(value) if key.endswith(_TIME) and isinstance(value, str) else value


def _filesystem(shown: Shown | None) -> FsObservation | None:
    if shown is None:
        return None
    return FsObservation(
        shown["path"],
        0,
        shown["capacity_bytes"],
        shown["available_bytes"],
        shown["inodes"],
        shown["inodes_free"],
        _moment(shown["observed_at"]),
    )


def _past(shown: Shown) -> PastPass:
    eviction = shown.get("eviction")
    return PastPass(
        id=shown["id"],
        started_at=_moment(shown["started_at"]),
        duration_s=shown["duration_s"],
        trigger=shown["trigger"],
        scope=shown["scope"],
        plan_id=shown["plan_id"],
        dry_run=shown["dry_run"],
        result=shown["end"],
        detail=shown["end_detail"],
        predicted_bytes=shown["predicted_bytes"],
        freed_bytes=shown["freed_bytes"],
        percent_before=shown["imagefs_percent_before"],
        percent_after=shown["imagefs_percent_after"],
        actions=tuple(map(_past_action, shown["actions"])),
        eviction=json.dumps(eviction) if eviction else "",
    )


def _past_action(shown: Shown) -> PastAction:
    return PastAction(
        kind=shown["kind"],
        item_id=shown["id"],
        name=shown["name"],
        references=tuple(shown["references"]),
        outcome=shown["outcome"],
        detail=shown["detail"],
        reason=shown["reason"]["code"],
        sentence=shown["reason"]["sentence"],
        frees_bytes=shown["frees_bytes"],
        duration_s=shown["duration_s"],
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
