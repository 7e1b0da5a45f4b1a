"""The container runtime over its socket: lists, statistics, stops and removals.

Protobuf messages stop in this package. They become values of :mod:`nodeagent.model` or of the module that reads them,
grpc's exceptions become those of :mod:`nodeagent.errors`, nanosecond timestamps become aware datetimes. Only
``connection`` imports grpc for clients and ``serving`` for servers.

``cri`` is a client of the Container Runtime Interface, which every runtime has and which suffices for all loops.
``containerd`` is a client of containerd's own services on the same socket. ``metadata_graph`` and ``storage_graph``
derive the space that images occupy from them; without them sizes are upper bounds.

Rejected: generated client and server classes (they require at run time the grpcio version that generated them), one
client per server version (a missing feature shows as UNIMPLEMENTED or as an absent field), and retries inside the
clients (a loop knows better than a call when to retry).
"""
