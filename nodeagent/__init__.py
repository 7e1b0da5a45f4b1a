"""A node-side agent for container nodes: garbage collection, pod eviction and graceful shutdown.

Each feature reads the node into an immutable snapshot, plans with pure functions that state a reason for every
candidate (its package ``plan``), and executes the plan after a re-check of each item. The daemon, previews and
explanations use the same planners, so a preview equals the run.

Each package imports only packages below it (import contracts in ``pyproject.toml``)::

    cli                  commands: render documents, make no decisions
    doctor               checks of the node
    daemon               supervisor, control API, metrics and health, reload, status
    settings             the whole configuration
    shutdown, cluster    graceful shutdown; the node at the API server
    eviction             pod eviction, and reclaim before it
    gc                   images, containers, sandboxes, pod logs
    pods                 facts of pods, and the role of the node
    loops                what the tasks of the daemon share
    api                  base of the published JSON, and the control API's client
    runtime, host, kube, store    clients of CRI and containerd, kernel and systemd, kubelet; state on disk
    telemetry            log events, event bus, counters
    config               core of the configuration
    model                value types, decisions and reason codes

Three typical changes, with the files to edit:

An eviction signal
    ``model/pressure.py`` (member of ``Signal``), ``eviction/plan/thresholds.py`` (unit, resource and node condition),
    ``eviction/kernel_signals.py`` (its reading), ``eviction/settings.py`` (its name in the configuration reference),
    ``tests/unit/eviction/test_kernel_signals.py``. Thresholds, status and metrics need no change.
A keep rule for images
    ``model/reason_codes.py`` (reason code and sentence), ``gc/plan/image_protection.py`` (the rule, at its precedence),
    ``gc/plan/explanation.py`` (condition of a later removal), ``tests/unit/gc/plan/test_image_keep_rules.py``.
    For a separate setting: a field of ``ProtectionPolicy`` and the option in ``gc/settings.py``. For a label of the
    image: fields of ``Image`` and ``ImageRecord`` in ``model``, read by the storage graph in ``runtime``, whose
    ``with_labels`` also serves the re-check before a removal.
A column in a list
    ``gc/documents/lists.py`` (field of the document), ``cli/listing.py`` (column of the table),
    ``tests/unit/cli/test_listing.py``, and the stored screens of ``tests/unit/cli/test_golden.py`` for a column that is
    shown by default or with ``-o wide``.
"""

__version__ = "0.3.0"
