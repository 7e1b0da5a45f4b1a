"""Telemetry: structured logging, the catalogue of log events, the event bus and the counters of the metrics.

Every event is published on the bus before the log level filters it, so that counters and the watch stream are complete
at any level. Counters are plain numbers in memory: the Prometheus library is imported at the first scrape only, which
saves memory on nodes without scrapes.
"""
