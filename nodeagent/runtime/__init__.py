"""Container runtime clients: lists, statistics, stops and removals over the runtime's socket.

Protobuf messages are not used outside this package. They are decoded to values of :mod:`nodeagent.model` or of
``cri`` and ``containerd``; grpc's exceptions are translated to exceptions of :mod:`nodeagent.errors`,
nanosecond timestamps to aware datetimes. Only ``connection`` imports grpc.

``cri`` is a client of the Container Runtime Interface, which every runtime offers and which is sufficient for all
loops. ``containerd`` is a client of containerd's own services on the same socket. ``namespace_lists`` and
``storage_graph`` derive the disk usage of images from these services. ``storage_backend`` is the interface to the
services and graphs for other packages; its null backend is for CRI alone, where sizes are upper bounds.

Rejected: generated client and server classes, which require at run time the grpcio version of their generation.
Rejected: one client per server version, since a missing feature is reported as UNIMPLEMENTED or as an absent field.
Rejected: retries inside the clients, since the retry interval depends on the loop.
"""
