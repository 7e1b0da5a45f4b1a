"""Run every measurement."""

import sys

from tests.bench import bench_agent, bench_planner

print("planners", flush=True)
sys.argv = sys.argv[:1]
bench_planner.main()
print("\nagent", flush=True)
bench_agent.main()
