"""Run every measurement."""

import os
import sys

from tests.bench import (
    bench_agent,
    bench_bulk,
    bench_history,
    bench_large,
    bench_layers,
    bench_planner,
    bench_pods,
    bench_shutdown,
    bench_start,
    bench_wake,
)

sys.argv = sys.argv[:1]
print("planners", flush=True)
try:
    bench_planner.main()
except SystemExit as ended:
    print(f"exit {ended.code}")
print("\nlayer graph", flush=True)
bench_layers.main()
print("\npods", flush=True)
try:
    bench_pods.main()
except SystemExit as ended:
    print(f"exit {ended.code}")
print("\nshutdown", flush=True)
try:
    bench_shutdown.main([])
except SystemExit as ended:
    print(f"exit {ended.code}")
print("\nwake to decision", flush=True)
try:
    bench_wake.main()
except SystemExit as ended:
    print(f"exit {ended.code}")
print("\nhistory", flush=True)
try:
    bench_history.main()
except SystemExit as ended:
    print(f"exit {ended.code}")
print("\nlarge node", flush=True)
try:
    bench_large.main([])
except SystemExit as ended:
    print(f"exit {ended.code}")
print("\nagent", flush=True)
bench_agent.main()
print("\nstart of commands", flush=True)
try:
    bench_start.main()
except SystemExit as ended:
    print(f"exit {ended.code}")
print("\nbulk removal on a real containerd", flush=True)
if os.geteuid() == 0:
    bench_bulk.main()
else:
    print("skipped: requires root")
