"""Graceful node shutdown: the inhibitor lock, the shutdown itself, the stop hook of the unit, and the pod cache.

The pod cache holds the last list of pods, since the kubelet may be gone when the node goes down. The stop hook covers
a shutdown without a granted delay (``InhibitDelayMaxSec=0``) and one in which logind did not signal.
"""
