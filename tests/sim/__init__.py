"""Simulated container runtime: the state of a node in memory, served over a real unix socket.

Unit tests, benchmarks and ``make demo DEMO=simulated`` use the simulation. The state (``node``, ``store``) is
independent of gRPC and changed only by method calls; the services (``cri``, ``containerd``) publish it with the
behaviour of a runtime version (``profiles``) and with injected faults (``faults``). Behaviour that CRI does not define
was observed on containerd 1.6.20, 1.7.24 and 2.1.9: removals are forced, garbage collection follows a removal with a
delay, and containers of a removed image continue to run.

Rejected alternatives: a fake client without a socket (no deadlines, no restarts, no message limits), and garbage
collection in a thread (tests would have to wait for the thread; here the collection is an explicit step, run by the
server shortly after a removal unless disabled).
"""
