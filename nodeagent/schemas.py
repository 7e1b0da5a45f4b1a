"""Schema ids of every JSON document and state file.

An id names one structure. Fields are added under the same id; a field that changes its meaning needs a new id.
"""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class SchemaId(StrEnum):
    """Every schema id; a duplicate value is an error at import."""

    # documents, printed by commands with -o json and returned by the control API
    APPLY = "nodeagent/apply/v1"
    CONFIG = "nodeagent/config/v1"
    CONTAINERS = "nodeagent/containers/v1"
    DISK_USAGE = "nodeagent/du/v1"
    DOCTOR = "nodeagent/doctor/v1"
    EVENT = "nodeagent/event/v1"
    EVICTION_PREVIEW = "nodeagent/evict/v1"
    EXPLANATION = "nodeagent/explain/v1"
    FLEET = "nodeagent/fleet/v1"
    HISTORY = "nodeagent/history/v1"
    HOLD = "nodeagent/hold/v1"
    HOLD_LIST = "nodeagent/hold-list/v1"
    IMAGES = "nodeagent/images/v1"
    IMAGE_TREE = "nodeagent/image-tree/v1"
    NODE_REPORT = "nodeagent/node-report/v1"
    PAUSED = "nodeagent/paused/v1"
    PLAN_DIFF = "nodeagent/plan-diff/v2"
    PODS = "nodeagent/pods/v1"
    POD_USAGE = "nodeagent/pod-usage/v1"
    PRESSURE = "nodeagent/pressure/v1"
    PREVIEW = "nodeagent/preview/v1"
    RELOAD = "nodeagent/reload/v1"
    REPORT = "nodeagent/report/v1"
    RESULT = "nodeagent/result/v1"
    RESUMED = "nodeagent/resumed/v1"
    SAVED_PLAN = "nodeagent/plan/v2"
    SHUTDOWN = "nodeagent/shutdown/v1"
    SHUTDOWN_STATUS = "nodeagent/shutdown-status/v1"
    STATUS = "nodeagent/status/v1"
    TOP = "nodeagent/top/v1"
    TREND = "nodeagent/trend/v1"
    TRIGGER = "nodeagent/trigger/v1"
    UNDO = "nodeagent/undo/v1"
    UNDO_LIST = "nodeagent/undo-list/v1"
    VERSION = "nodeagent/version/v1"

    # files in the state directory
    BOOT_FILE = "nodeagent/boot/v1"
    EVICTIONS_FILE = "nodeagent/evictions/v1"
    HOLDS_FILE = "nodeagent/holds/v1"
    MODE_FILE = "nodeagent/mode/v1"
    PAUSE_FILE = "nodeagent/pause/v1"
    SHUTDOWN_FILE = "nodeagent/shutdown-state/v1"
