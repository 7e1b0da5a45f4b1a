"""Frozen value types, shared by all other packages.

The types have no behaviour beyond properties computed from their fields. Mappings are never changed after construction;
plain ``dict`` is used instead of a read-only wrapper, because a node has tens of thousands of mappings.
"""

from nodeagent.model.clock import TRUSTED, ClockTrust
from nodeagent.model.node import (
    ALL_IMAGES,
    LONGEST_HOLD_S,
    NO_POD_IMAGES,
    ContainerLogLink,
    Hold,
    KubeletProcess,
    KubeletTraces,
    LogOpeners,
    LogTree,
    NodeSnapshot,
    PodImages,
    PodLogDirectory,
    Role,
    RoleBasis,
    RoleDecision,
    RoleMemory,
    RuntimeInfo,
)
from nodeagent.model.pods import PodList, PodListSource
from nodeagent.model.runtime import (
    Container,
    ContainerState,
    GapCause,
    Image,
    ImageUsage,
    ImageUseRecord,
    ListContradiction,
    ObservationGap,
    Sandbox,
)
from nodeagent.model.stops import PodOutcome, PodProgress, ShutdownPod
from nodeagent.model.storage import (
    FsObservation,
    ImageFilesystem,
    ImageRecord,
    PieceKind,
    ReferenceKind,
    StorageGraph,
    StoredPiece,
    UnreferencedPiece,
)

__all__ = [
    "ALL_IMAGES",
    "LONGEST_HOLD_S",
    "NO_POD_IMAGES",
    "TRUSTED",
    "ClockTrust",
    "Container",
    "ContainerLogLink",
    "ContainerState",
    "FsObservation",
    "GapCause",
    "Hold",
    "Image",
    "ImageFilesystem",
    "ImageRecord",
    "ImageUsage",
    "ImageUseRecord",
    "KubeletProcess",
    "KubeletTraces",
    "ListContradiction",
    "LogOpeners",
    "LogTree",
    "NodeSnapshot",
    "ObservationGap",
    "PieceKind",
    "PodImages",
    "PodList",
    "PodListSource",
    "PodLogDirectory",
    "PodOutcome",
    "PodProgress",
    "ReferenceKind",
    "Role",
    "RoleBasis",
    "RoleDecision",
    "RoleMemory",
    "RuntimeInfo",
    "Sandbox",
    "ShutdownPod",
    "StorageGraph",
    "StoredPiece",
    "UnreferencedPiece",
]
