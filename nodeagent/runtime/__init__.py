"""The container runtime, over its socket: reading what it has and asking it to remove.

Everything foreign stays in this room. Protobuf messages become the values of :mod:`nodeagent.model` or of the module
that reads them, grpc's exceptions become those of :mod:`nodeagent.errors`, nanosecond stamps become aware datetimes.
Only ``connection`` imports grpc for clients and ``serving`` for servers.

``cri`` speaks the Container Runtime Interface, which every runtime has, and is enough for all duties. ``containerd``
speaks containerd's own services on the same socket, and ``layers`` builds from them what images really occupy; without
them sizes are upper bounds, nothing else is lost.

Decided against: generated client and server classes (they demand at run time the very grpcio that generated them, and
say nothing the descriptors do not), a client for each server version (what a server lacks shows as UNIMPLEMENTED or as
an absent field), and retries in here (a loop knows better when to try again than a call does).
"""
