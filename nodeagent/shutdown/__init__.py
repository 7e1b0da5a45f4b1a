"""Graceful node shutdown: the inhibitor lock, the shutdown itself, the stop hook of the unit, and the list of pods.

The decisions are pure: a state machine (``plan.inhibitor``), and the time of each phase and the order of the pods
(``plan.planner``). ``session`` carries out the commands of the state machine. ``pods`` has the last list of pods, since
the kubelet may have stopped before the shutdown. ``stop_hook`` covers a shutdown without a granted delay
(``InhibitDelayMaxSec=0``) and a shutdown that logind did not signal.
"""
