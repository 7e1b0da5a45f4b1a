"""Methods of containerd's services, with deadlines, and marks for methods that change state."""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty

from nodeagent._proto.containerd.services.containers.v1 import containers_pb2
from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.introspection.v1 import introspection_pb2
from nodeagent._proto.containerd.services.leases.v1 import leases_pb2
from nodeagent._proto.containerd.services.namespaces.v1 import namespaces_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent.runtime.connection import Method

_SERVICES = "/containerd.services."
_LIST_S = 30.0
_DELETE_S = 120.0

NAMESPACES = Method(
    _SERVICES + "namespaces.v1.Namespaces/List",
    namespaces_pb2.ListNamespacesRequest,
    namespaces_pb2.ListNamespacesResponse,
    "namespaces.List",
)
PLUGINS = Method(
    _SERVICES + "introspection.v1.Introspection/Plugins",
    introspection_pb2.PluginsRequest,
    introspection_pb2.PluginsResponse,
    "introspection.Plugins",
)
IMAGES = Method(
    _SERVICES + "images.v1.Images/List",
    images_pb2.ListImagesRequest,
    images_pb2.ListImagesResponse,
    "images.List",
    _LIST_S,
)
GET_IMAGE = Method(
    _SERVICES + "images.v1.Images/Get", images_pb2.GetImageRequest, images_pb2.GetImageResponse, "images.Get"
)
CREATE_IMAGE = Method(
    _SERVICES + "images.v1.Images/Create",
    images_pb2.CreateImageRequest,
    images_pb2.CreateImageResponse,
    "images.Create",
    changes=True,
)
UPDATE_IMAGE = Method(
    _SERVICES + "images.v1.Images/Update",
    images_pb2.UpdateImageRequest,
    images_pb2.UpdateImageResponse,
    "images.Update",
    changes=True,
)
DELETE_IMAGE = Method(
    _SERVICES + "images.v1.Images/Delete",
    images_pb2.DeleteImageRequest,
    Empty,
    "images.Delete",
    _DELETE_S,
    changes=True,
)
CONTENT = Method(
    _SERVICES + "content.v1.Content/List",
    content_pb2.ListContentRequest,
    content_pb2.ListContentResponse,
    "content.List",
    _LIST_S,
)
CONTENT_INFO = Method(
    _SERVICES + "content.v1.Content/Info", content_pb2.InfoRequest, content_pb2.InfoResponse, "content.Info"
)
DELETE_CONTENT = Method(
    _SERVICES + "content.v1.Content/Delete",
    content_pb2.DeleteContentRequest,
    Empty,
    "content.Delete",
    _DELETE_S,
    changes=True,
)
# Both directions are streams; the agent sends a single request, with the action COMMIT.
WRITE = Method(
    _SERVICES + "content.v1.Content/Write",
    content_pb2.WriteContentRequest,
    content_pb2.WriteContentResponse,
    "content.Write",
    _DELETE_S,
    changes=True,
)
INGESTS = Method(
    _SERVICES + "content.v1.Content/ListStatuses",
    content_pb2.ListStatusesRequest,
    content_pb2.ListStatusesResponse,
    "content.ListStatuses",
)
SNAPSHOTS = Method(
    _SERVICES + "snapshots.v1.Snapshots/List",
    snapshots_pb2.ListSnapshotsRequest,
    snapshots_pb2.ListSnapshotsResponse,
    "snapshots.List",
    _LIST_S,
)
USAGE = Method(
    _SERVICES + "snapshots.v1.Snapshots/Usage",
    snapshots_pb2.UsageRequest,
    snapshots_pb2.UsageResponse,
    "snapshots.Usage",
)
REMOVE_SNAPSHOT = Method(
    _SERVICES + "snapshots.v1.Snapshots/Remove",
    snapshots_pb2.RemoveSnapshotRequest,
    Empty,
    "snapshots.Remove",
    _DELETE_S,
    changes=True,
)
PREPARE_SNAPSHOT = Method(
    _SERVICES + "snapshots.v1.Snapshots/Prepare",
    snapshots_pb2.PrepareSnapshotRequest,
    snapshots_pb2.PrepareSnapshotResponse,
    "snapshots.Prepare",
    _DELETE_S,
    changes=True,
)
CLEANUP = Method(
    _SERVICES + "snapshots.v1.Snapshots/Cleanup",
    snapshots_pb2.CleanupRequest,
    Empty,
    "snapshots.Cleanup",
    _DELETE_S,
    changes=True,
)
CONTAINERS = Method(
    _SERVICES + "containers.v1.Containers/List",
    containers_pb2.ListContainersRequest,
    containers_pb2.ListContainersResponse,
    "containers.List",
    _LIST_S,
)
CONTAINERS_STREAMED = Method(
    _SERVICES + "containers.v1.Containers/ListStream",
    containers_pb2.ListContainersRequest,
    containers_pb2.ListContainersResponse,
    "containers.ListStream",
    _LIST_S,
)
LEASES = Method(_SERVICES + "leases.v1.Leases/List", leases_pb2.ListRequest, leases_pb2.ListResponse, "leases.List")
LEASE_RESOURCES = Method(
    _SERVICES + "leases.v1.Leases/ListResources",
    leases_pb2.ListResourcesRequest,
    leases_pb2.ListResourcesResponse,
    "leases.ListResources",
)
CREATE_LEASE = Method(
    _SERVICES + "leases.v1.Leases/Create",
    leases_pb2.CreateRequest,
    leases_pb2.CreateResponse,
    "leases.Create",
    changes=True,
)
ADD_RESOURCE = Method(
    _SERVICES + "leases.v1.Leases/AddResource",
    leases_pb2.AddResourceRequest,
    Empty,
    "leases.AddResource",
    changes=True,
)
DELETE_LEASE = Method(
    _SERVICES + "leases.v1.Leases/Delete", leases_pb2.DeleteRequest, Empty, "leases.Delete", _DELETE_S, changes=True
)
