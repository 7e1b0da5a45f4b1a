"""Documents of single operations: pause, resume, trigger, reload, version, doctor, configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from nodeagent import __version__
from nodeagent.api.common import Document, Number, Part, ReasonDocument, RuntimeVersion
from nodeagent.gc.documents.passes import DecisionDocument
from nodeagent.model.decision import ItemKind
from nodeagent.record import Time
from nodeagent.schemas import SchemaId
from nodeagent.settings.settings import DEFAULT_SOURCE

if TYPE_CHECKING:
    from nodeagent.model.node import RuntimeInfo


class Paused(Document, frozen=True, kw_only=True, tag=SchemaId.PAUSED.value):
    """Confirmation of a pause, with its end."""

    paused: bool = True
    until: Time


class Resumed(Document, frozen=True, kw_only=True, tag=SchemaId.RESUMED.value):
    """Confirmation of a resume; ``was_paused`` states whether a pause was in force."""

    paused: bool = False
    was_paused: bool


class Triggered(Document, frozen=True, kw_only=True, tag=SchemaId.TRIGGER.value):
    """Result of the trigger of a loop.

    Attributes:
        ended: whether its run is finished; ``result`` and ``detail`` are empty otherwise.
        dry_run: whether the run removed nothing; ``None`` if the configuration changed during the run.
    """

    loop: str
    ended: bool
    result: str
    detail: str
    dry_run: bool | None = None


class SettingDocument(Part, frozen=True, kw_only=True):
    """A value in TOML and its source: a file, an environment variable or ``default``."""

    value: str
    source: str


class EffectiveConfig(Document, frozen=True, kw_only=True, tag=SchemaId.CONFIG.value):
    """All settings by key, such as ``image_gc.high_threshold_percent``."""

    settings: dict[str, SettingDocument]

    @classmethod
    def of(cls, values: Iterable[tuple[str, str]], sources: Mapping[str, str]) -> EffectiveConfig:
        """Return the document of all settings; a setting without a source has its default."""
        return cls(
            settings={
                key: SettingDocument(value=value, source=sources.get(key, DEFAULT_SOURCE)) for key, value in values
            }
        )


class Version(Document, frozen=True, kw_only=True, tag=SchemaId.VERSION.value):
    """The versions of nodeagent and of the container runtime."""

    nodeagent: str
    runtime: RuntimeVersion

    @classmethod
    def of(cls, info: RuntimeInfo) -> Version:
        """Return the document of the agent's version and a runtime's version."""
        return cls(nodeagent=__version__, runtime=RuntimeVersion(**structs.asdict(info)))


class FindingDocument(Part, frozen=True, kw_only=True):
    """The result of one check; ``fix`` is empty if no action is required."""

    check: str
    verdict: str
    evidence: str
    fix: str


class TriggerDocument(Part, frozen=True, kw_only=True):
    """A trigger of a task of the kubelet, compared with that of the agent of the same quantity.

    Attributes:
        measure: unit of both values: ``used-percent``, ``used-inodes-percent``, ``seconds``, ``kept`` (dead
            containers) or ``stall-percent``.
        kubelet: trigger of the kubelet; empty without a trigger.
        kubelet_value: ``None`` if unknown, or without a trigger.
        agent: trigger of the agent; empty without a trigger.
        agent_value: ``None`` if unknown, or without a trigger.
        first: ``kubelet``, ``agent``, ``equal``, ``unknown``, or ``-`` if only one side performs the task.
    """

    task: str
    measure: str
    kubelet: str
    kubelet_value: float | None
    agent: str
    agent_value: float | None
    first: str


class Doctor(Document, frozen=True, kw_only=True, tag=SchemaId.DOCTOR.value):
    """The findings of all checks, and the triggers of kubelet and agent, empty without a kubelet configuration."""

    findings: tuple[FindingDocument, ...]
    triggers: tuple[TriggerDocument, ...] = ()


class KindCount(Part, frozen=True, kw_only=True):
    """Number and predicted bytes of the removals of one kind of item."""

    kind: ItemKind
    items: int
    frees_bytes: int


class MetThreshold(Part, frozen=True, kw_only=True):
    """A threshold that is met and acted on after the reload."""

    text: str
    hard: bool
    grace_s: Number


class EvictedPod(Part, frozen=True, kw_only=True):
    """A pod that is evicted after the reload."""

    uid: str
    namespace: str
    name: str
    reason: ReasonDocument


class ReloadEffectDocument(Part, frozen=True, kw_only=True):
    """The removals and evictions caused by a reload.

    Attributes:
        known: whether the complete effect is known; otherwise ``problem`` is the cause.
        first: the first removals, in order of execution; ``items`` is the number of all removals.
        pods: the pods evicted first.
    """

    known: bool
    problem: str
    items: int
    frees_bytes: int
    kinds: tuple[KindCount, ...]
    first: tuple[DecisionDocument, ...]
    thresholds: tuple[MetThreshold, ...]
    pods: tuple[EvictedPod, ...]


class Grace(Part, frozen=True, kw_only=True):
    """The reload grace period; ``until`` is ``None`` while a pause suspends it."""

    seconds: Number
    until: Time | None


class Reload(Document, frozen=True, kw_only=True, tag=SchemaId.RELOAD.value):
    """The outcome of a reload, or of its preview.

    Attributes:
        applied: whether the settings are in force.
        changes: changed settings, one line each.
        effect: removals and evictions caused by the changes; ``None`` without a change.
        grace: the reload grace period; ``None`` outside a grace period.
    """

    applied: bool
    changes: tuple[str, ...]
    dry_run: bool
    effect: ReloadEffectDocument | None = None
    grace: Grace | None = None
