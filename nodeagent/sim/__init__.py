"""A container runtime that is not one: a node's state in memory, served over a real unix socket.

It serves unit tests, benchmarks and ``nodeagent demo``. The state (``node``, ``store``) knows nothing of gRPC and
moves only when it is told to or called; the services (``cri``, ``containerd``) put it on the wire as the chosen
runtime version would (``profiles``), with faults in between (``faults``). What containerd does where the interface
leaves it open was observed on 1.6.20, 1.7.24 and 2.1.9: removals force, garbage collection follows a removal by
itself but later, a removed image keeps running.

Decided against: answering from inside the client (no socket, so no deadlines, no restarts, no message limits), and
running garbage collection as a thread (tests would have to wait for it; here it is an explicit step which the server
takes shortly after a removal unless told not to).
"""
