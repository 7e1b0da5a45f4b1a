# `make demo` runs the main job, `make test` runs all checks possible on this machine. `make help` lists the rest.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
export VENV
# pip starts interpreters that are not isolated.
unexport PYTHONPATH PYTHONHOME
NATIVE = $(shell dpkg --print-architecture)
PREFIX ?= /opt/nodeagent
# Unit tests are independent of each other; integration tests share the machine's mounts and cgroups.
PARALLEL := --numprocesses auto --dist loadfile
UNIT_TESTS := tests/unit tests/security --ignore tests/security/tenants
CONTAINERD_TESTS := tests/integration tests/security/tenants
# In CI, the processor time that the tests on containerd leave unused is for 20 s of each fuzz target and, with
# NODE=beside, for the short node tests.
BESIDE := $(if $(CI),$(BIN)/python -m tests.beside $(if $(filter beside,$(NODE)),--node))
# The disk of the node tests is built beside the unit tests: a mount namespace of the build keeps copies of mounts, whose
# loop devices the tests on containerd could not remove.
NODE_DISK := $(if $(filter beside,$(NODE)),$(BIN)/python -c 'from tests.support import vm; vm.ensure_disk()' &)
PYTHON ?= python3

.PHONY: help demo demo-picture test check unit integration cluster campaign-cluster campaign-eviction campaign-relief campaign-needed-space campaign-disk-usage campaign-forecast campaign-kill campaign-removal campaign-shutdown campaign-poweroff campaign-properties campaign-tenants campaign-dashboard soak fuzz test-matrix test-node test-page bench lock audit protos docs install uninstall python deb rpm sign release test-release test-python test-packages test-rpm test-rebuild image test-image format clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

demo: ## tour of preview, run, explain, undo and rehearsals: on a temporary real containerd as root, otherwise (or DEMO=simulated) preview and run on a simulated node
	@.ci/setup run $(if $(filter simulated,$(DEMO)),,real)
	@if [ "$(DEMO)" != simulated ] && [ "$$(id -u)" = 0 ]; then \
		$(BIN)/python -m tests.support.demo; \
	else \
		$(BIN)/python -m tests.support.simulated_demo; \
	fi

demo-picture: ## as root: the tour of the demo, recorded as the picture of the README
	@.ci/setup run real
	@$(BIN)/python -m tests.support.demo --picture nodeagent/docs/tour.svg

test: ## set up and run all checks and tests of this machine; skipped tests are listed with the reason
	@.ci/setup protos real
	$(NODE_DISK)
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest $(UNIT_TESTS) $(PARALLEL)
	$(BESIDE) $(BIN)/python -m pytest $(CONTAINERD_TESTS) tests/cluster

check: ## format, lint, types, import directions, generated files, vocabulary; reports sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -I protos/generate.py --check
	$(BIN)/python -m nodeagent.settings.reference --check nodeagent/docs/configuration.md nodeagent/docs/reason-codes.md
	$(BIN)/python systemd/manual.py --check
	$(BIN)/python -m tests.language
	$(BIN)/python -m tests.sizes

unit: ## unit tests, without root and container runtime
	@.ci/setup dev
	$(BIN)/python -m pytest $(UNIT_TESTS) $(PARALLEL)

integration: ## integration tests on a real containerd
	@.ci/setup dev real
	$(BIN)/python -m pytest $(CONTAINERD_TESTS)

cluster: ## as root: tests against a real control plane and kubelet, whose binaries are in the directory KUBE_BIN_DIR
	@.ci/setup dev real
	KUBE_BIN_DIR=$(KUBE_BIN_DIR) $(BIN)/python -m pytest tests/cluster

campaign-cluster: ## as root: churn with both collectors, an unavailable API server and Lease intervals, MINUTES each (10), logs to LOGS; see cluster
	@.ci/setup dev real
	KUBE_BIN_DIR=$(KUBE_BIN_DIR) NODEAGENT_TEST_MINUTES=$(or $(MINUTES),10) NODEAGENT_TEST_LOGS=$(LOGS) $(BIN)/python -m pytest --timeout 0 -s -m campaign tests/cluster

campaign-eviction: ## as root: evictions under disk pressure on a real containerd, RUNS times each (10)
	@.ci/setup dev real
	NODEAGENT_TEST_RUNS=$(or $(RUNS),10) $(BIN)/python -m pytest --timeout 0 tests/integration/test_eviction.py -m campaign

campaign-relief: ## as root: shortages that evictions cannot end, on a real containerd, RUNS times each (10)
	@.ci/setup dev real
	NODEAGENT_TEST_RUNS=$(or $(RUNS),10) $(BIN)/python -m pytest --timeout 0 tests/integration/test_eviction_relief.py

campaign-needed-space: ## as root: reclaim and gc all on RUNS random stores (40), and removals of RUNS random sets of images, of a real containerd; predictions are compared with measurements
	@.ci/setup dev real
	NODEAGENT_TEST_RUNS=$(or $(RUNS),40) $(BIN)/python -m pytest --timeout 0 -s -m campaign \
		tests/integration/test_needed_space.py tests/integration/test_freed_bytes.py

campaign-disk-usage: ## as root: du on RUNS random stores (40) of each containerd, on ext4, xfs and btrfs; every planted item is compared
	@.ci/setup dev real
	@for version in host 1.7 2.1; do \
		echo "== containerd $$version"; \
		NODEAGENT_TEST_CONTAINERD=$$version NODEAGENT_TEST_RUNS=$(or $(RUNS),40) $(BIN)/python -m pytest --timeout 0 -s tests/integration/test_disk_usage.py -m campaign || exit 1; \
	done

fuzz: ## fuzz all inputs of other users and programs for MINUTES (30), guided by coverage where atheris is available
	@.ci/setup dev
	@$(BIN)/python -I -m pip install --quiet --disable-pip-version-check --group fuzz || echo "fuzz: without atheris"
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),30)

campaign-forecast: ## backtest of the forecast with RUNS seeds (30) of each course, beside predict_linear; prints tables
	@.ci/setup dev
	NODEAGENT_TEST_RUNS=$(or $(RUNS),30) $(BIN)/python -m pytest --timeout 0 -s tests/unit/trend/test_backtest.py -m campaign

campaign-kill: ## as root: passes killed by SIGKILL on a real containerd, RUNS times (200)
	@.ci/setup dev real
	NODEAGENT_TEST_RUNS=$(or $(RUNS),200) NODEAGENT_TEST_SEED=$(or $(SEED),$$RANDOM) $(BIN)/python -m pytest --timeout 0 tests/integration/test_kill.py -m campaign

campaign-removal: ## as root: image removals against concurrent use, kills and restarts, RUNS rounds (100); REMOVAL=agent,kubelet,at-once
	@.ci/setup dev real
	NODEAGENT_TEST_RUNS=$(or $(RUNS),100) NODEAGENT_TEST_REMOVAL=$(or $(REMOVAL),agent) NODEAGENT_TEST_SEED=$(or $(SEED),0) $(BIN)/python -m pytest --timeout 0 -s -m campaign \
		tests/integration/test_removal_races.py tests/integration/test_removal_interruptions.py

campaign-shutdown: ## as root: shutdowns of up to 40 pods with crashes of agent and containerd, on a real containerd
	@.ci/setup dev real
	NODEAGENT_TEST_RUNS=1 $(BIN)/python -m pytest --timeout 0 -s tests/integration/test_shutdown.py

campaign-poweroff: ## as root: shutdowns of a whole node in a virtual machine, disturbed by crashes and by others; ONLY=EXPRESSION selects, COUNTED=1 excludes the load of the host
	@.ci/setup dev node
	NODEAGENT_TEST_COUNTED=$(COUNTED) $(BIN)/python -m pytest --timeout 2400 -s tests/node/test_shutdown.py tests/node/test_shutdown_outcomes.py \
		tests/node/test_shutdown_interruptions.py $(if $(ONLY),-k "$(ONLY)")

campaign-properties: ## search of all random unit tests with new seeds for MINUTES (30); the first round with a failure is the last
	@.ci/setup dev
	@for ((end = SECONDS + 60 * $(or $(MINUTES),30), round = 1; SECONDS < end; round++)); do \
		echo "== round $$round"; \
		$(BIN)/python -m pytest tests/unit $(PARALLEL) -m hypothesis --hypothesis-profile search || exit 1; \
	done

campaign-tenants: ## as root: attacks of tenants on eviction, collection and history on a real containerd, RUNS times each (10)
	@.ci/setup dev real
	NODEAGENT_TEST_RUNS=$(or $(RUNS),10) $(BIN)/python -m pytest --timeout 0 tests/security/tenants/test_hostile_tenants.py -m campaign

campaign-dashboard: ## as root: a Prometheus (Debian: prometheus) that scrapes two daemons for MINUTES (60); every query of the dashboard must have a value
	@.ci/setup dev real
	$(BIN)/python -m tests.dashboard --minutes $(or $(MINUTES),60)

soak: ## as root: a daemon under churn and one without its runtime for MINUTES (60); fails if memory, descriptors or threads grow beyond their bounds
	@.ci/setup dev real
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60)

test-matrix: ## the integration tests on containerd 1.6 (this machine's), 1.7 and 2.1
	@.ci/setup dev real
	@for version in host 1.7 2.1; do \
		echo "== containerd $$version"; \
		NODEAGENT_TEST_CONTAINERD=$$version $(BIN)/python -m pytest $(CONTAINERD_TESTS) || exit 1; \
	done

test-node: ## node tests: systemd, cgroup v2 and containerd in a virtual machine (SHORT=1 skips the long ones)
	@.ci/setup dev node
	$(BIN)/python -m pytest --timeout 2400 tests/node $(if $(SHORT),-m "not long")

test-page: ## as root: pages of reports in a headless Chromium at three widths, light, dark and printed; PAGES=DIRECTORY keeps the pages and their pictures
	@.ci/setup dev page
	NODEAGENT_TEST_PAGES="$(PAGES)" $(BIN)/python -m pytest tests/page

bench: ## measure the budgets; prints a table
	@.ci/setup dev
	$(BIN)/python -m tests.bench

lock: ## lock the newest allowed dependencies with hashes, for packages, installation and CI
	.ci/lock

audit: ## check the locked dependencies for known vulnerabilities; fails without an answer for one of them
	.ci/audit

protos: ## generate nodeagent/_proto from protos/
	@.ci/setup protos
	$(BIN)/python -I protos/generate.py

docs: ## write the tables of settings and reason codes into their documents, and the manual pages
	@.ci/setup dev
	$(BIN)/python -m nodeagent.settings.reference nodeagent/docs/configuration.md nodeagent/docs/reason-codes.md
	$(BIN)/python systemd/manual.py

install uninstall: export PREFIX := $(PREFIX)
install uninstall: export PYTHON := $(PYTHON)

install: ## as root: the agent in PREFIX (/opt/nodeagent), its unit and manual, and a configuration in dry run (ENABLE=1 starts it)
	@systemd/installation install

uninstall: ## as root: stop the agent and remove it and its unit; keep configuration and state unless PURGE=1
	@systemd/installation uninstall

python: ## build wheel, sdist, kustomization and the offline archive with the libraries of Python 3.11 to 3.13 in dist/, for ARCHITECTURE amd64 or arm64
	@.ci/setup run
	ARCHITECTURE=$(ARCHITECTURE) systemd/python/build $(BIN)/python dist

deb: ## build packages for Debian 12 and 13 in dist/, dependencies included, for ARCHITECTURE amd64 or arm64
	@.ci/setup run
	ARCHITECTURE=$(ARCHITECTURE) systemd/debian/build $(BIN)/python dist

rpm: ## build an RPM in dist/ with rpmbuild (Debian: rpm), for the Python of PYTHON_VERSION (3.12)
	@.ci/setup run
	PYTHON_VERSION=$(PYTHON_VERSION) ARCHITECTURE=$(ARCHITECTURE) systemd/rpm/build $(BIN)/python dist

release: ## as root: all artefacts of ARCHITECTURES (this one; "amd64 arm64") in a new dist/ with SBOMs and SHA256SUMS; signed if KEY is set, see sign
	rm -rf dist
	@for each in $(or $(ARCHITECTURES),$(NATIVE)); do $(MAKE) --no-print-directory python deb rpm image ARCHITECTURE=$$each || exit 1; done
	@$(if $(KEY),systemd/sign dist "$(KEY)",echo "release: not signed, KEY is missing" >&2)

sign: ## sign dist/SHA256SUMS with KEY: the name of a GnuPG key, or a file with a private key (PEM, for openssl)
	@systemd/sign dist "$(KEY)"

test-packages: ## as root: install the packages of dist/ in fresh roots of Debian 12 and 13, up to the first answer on a real containerd, upgrade, remove and purge them; ARCHITECTURE=arm64 requires qemu-user-static and has no containerd
	@.ci/setup run real image
	@for each in dist/nodeagent_*~deb*_$(or $(ARCHITECTURE),$(NATIVE)).deb; do systemd/debian/try $(BIN)/python "$$each" || exit 1; done

test-python: ## as root: install the agent without a network from the offline archive of dist/, by pip and by uv, in a fresh root of Debian 13
	systemd/python/try $(BIN)/python dist/nodeagent-*-offline-$$(uname -m).tar.gz

test-rpm: ## as root: build an RPM for the Python of Debian 13, and install, reinstall and remove it with dnf in a fresh root
	@.ci/setup run
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && PYTHON_VERSION=3.13 systemd/rpm/build $(BIN)/python "$$scratch" && \
		systemd/rpm/try "$$scratch"/*.rpm

test-rebuild: ## as root: build the packages and the RPM in two fresh roots with other paths, users and clocks, and compare them; ARCHITECTURE as for deb
	@.ci/setup run
	ARCHITECTURE=$(ARCHITECTURE) systemd/rebuild $(BIN)/python dist deb rpm

test-release: ## as root: the artefacts of release, built twice as by test-rebuild, are identical; ARCHITECTURE as for deb
	@.ci/setup run image
	ARCHITECTURE=$(ARCHITECTURE) MIRROR=$(MIRROR) systemd/rebuild $(BIN)/python dist python deb rpm image

image: ## as root: build the container image in dist/ with mmdebstrap and buildah; ARCHITECTURE=arm64 requires qemu-user-static, IMAGE=REFERENCE is its name, MIRROR=URL a Debian mirror
	@.ci/setup run image
	ARCHITECTURE=$(ARCHITECTURE) IMAGE=$(IMAGE) MIRROR=$(MIRROR) systemd/image/build $(BIN)/python dist

test-image: ## as root: two builds of the container image are identical, and it works as a static pod on a real containerd; with ARCHITECTURE=arm64, its commands run under qemu-user instead
	@.ci/setup dev real image
	ARCHITECTURE=$(ARCHITECTURE) MIRROR=$(MIRROR) systemd/rebuild $(BIN)/python dist image
	systemd/image/try dist/nodeagent_*_$(or $(ARCHITECTURE),$(NATIVE)).oci.tar
	[ "$(or $(ARCHITECTURE),$(NATIVE))" != "$(NATIVE)" ] || KUBE_BIN_DIR=$(KUBE_BIN_DIR) NODEAGENT_TEST_RUNS=1 \
		NODEAGENT_TEST_IMAGE="$$(echo "$$PWD"/dist/nodeagent_*_"$(NATIVE)".oci.tar)" \
		$(BIN)/python -m pytest --timeout 0 tests/integration/test_container_image.py tests/cluster/test_container_image.py

format: ## format the code
	@.ci/setup dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove generated files
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .import_linter_cache
