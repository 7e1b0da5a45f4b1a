"""Frozen value types, shared by all other packages.

The types have no behaviour beyond properties computed from their fields. Mappings are never changed after construction;
plain ``dict`` is used instead of a read-only wrapper, because a node has tens of thousands of mappings.
"""

from nodeagent.model.clock_trust import TRUSTED, ClockTrust
from nodeagent.model.filesystem import FsObservation, ImageFilesystem
from nodeagent.model.hold import ALL_IMAGES, LONGEST_HOLD_S, Hold
from nodeagent.model.image import GapCause, Image, ImageUsage, ImageUseRecord, ObservationGap
from nodeagent.model.kubelet_traces import KubeletProcess, KubeletTraces, Role, RoleBasis, RoleDecision, RoleMemory
from nodeagent.model.list_contradiction import ListContradiction
from nodeagent.model.logs import ContainerLogLink, LogOpeners, LogTree, PodLogDirectory
from nodeagent.model.node import NodeSnapshot, RuntimeInfo
from nodeagent.model.pod_images import NO_POD_IMAGES, PodImages
from nodeagent.model.pod_list import PodList, PodListSource
from nodeagent.model.shutdown import PodOutcome, PodProgress, ShutdownPod
from nodeagent.model.storage import ImageRecord, PieceKind, ReferenceKind, StorageGraph, StoredPiece, UnreferencedPiece
from nodeagent.model.workload import Container, ContainerState, Sandbox

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
