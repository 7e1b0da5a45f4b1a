"""Documents of ``nodeagent version`` and ``nodeagent doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent import __version__
from nodeagent.api.codec import Document, Part
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.model import RuntimeInfo


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

    @classmethod
    def of(cls, info: RuntimeInfo) -> Version:
        """Return the document of the agent's version and a runtime's version."""
        runtime = RuntimeVersion(
            name=info.name, version=info.version, api_version=info.api_version, endpoint=info.endpoint
        )
        return cls(nodeagent=__version__, runtime=runtime)


class Finding(Part, frozen=True, kw_only=True):
    """The result of one check; ``fix`` is empty if no action is required."""

    check: str
    verdict: str
    evidence: str
    fix: str


class Doctor(Document, frozen=True, kw_only=True, tag=SchemaId.DOCTOR.value):
    """The findings of all checks."""

    findings: tuple[Finding, ...]
