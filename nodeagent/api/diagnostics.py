"""Documents of the version and of doctor's findings."""

from __future__ import annotations

from nodeagent.api.codec import Document, Part
from nodeagent.model.schemas import SchemaId


class RuntimeVersion(Part, frozen=True, kw_only=True):
    """Name and version of the container runtime."""

    name: str
    version: str
    api_version: str
    endpoint: str


class Version(Document, frozen=True, kw_only=True, tag=SchemaId.VERSION.value):
    """The versions of nodeagent and of the container runtime."""

    nodeagent: str
    runtime: RuntimeVersion


class Finding(Part, frozen=True, kw_only=True):
    """The result of one check; ``fix`` is empty if no action is required."""

    check: str
    verdict: str
    evidence: str
    fix: str


class Doctor(Document, frozen=True, kw_only=True, tag=SchemaId.DOCTOR.value):
    """The findings of all checks."""

    findings: tuple[Finding, ...]
