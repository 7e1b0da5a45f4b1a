"""Graceful node shutdown: the inhibitor lock, the shutdown itself, the stop hook of the unit, and the pod cache.

The decisions are a pure state machine in :mod:`nodeagent.shutdown.plan.inhibitor`; this package carries out its
commands. The pod cache has the last list of pods, since the kubelet may have stopped before the shutdown. The stop hook
covers a shutdown without a granted delay (``InhibitDelayMaxSec=0``) and a shutdown that logind did not signal.
"""
