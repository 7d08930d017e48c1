# make demo   set everything up and stream text from SmolLM2-135M-Instruct
# make serve  the same model at http://127.0.0.1:8000, as OpenAI's API
# make test   run the tests, two at a time, with at most two cases of each, and name the ten slowest; with SLOW=1 every
#             case of these and of the slow tests, in one run
# make test-affected   the tests that a change since origin/main, or since SINCE=HEAD~1, can reach
# make test-slow   those that take seconds and are no law
# make test-compiler   those that wait for a C++ compiler
# make test-sanitized   native/ under the address, thread and undefined behaviour sanitizers
# make test-processors   laws and products under the instruction sets of other processors, told by the environment
# make test-browser   the server's page in headless Chromium, which root installs on Debian and Ubuntu
# make test-wheel   the files of a release, built and installed where there is no compiler
# make test-arm    native/ for aarch64, emulated: its dot products give the bits of x86-64's
# make wheels   the files of a release, in dist/ (docs/releasing.md)
# make test-long   law 14 for ten minutes with each program, 50,000 mutated files, 200 prompts with each proposer, two
#                  hours of a server under load, the benchmarks that the documents show, and the laws of every family
# make test-newest   the tests with the newest version of all that pyproject.toml allows, without constraints.txt
# make test-late    the tests in random order, while threads and servers are late: those that count on a moment fail
# make test-clients   other programs against the server: OpenAI's JavaScript client, schemathesis, lm-eval, proxies; and
#                     what llama.cpp and vLLM test of their servers
# make test-agents    coding agents (2 GB) that do a scripted task at the server
# make prove  100,000 texts of our server, compared with the same ones computed otherwise
# make test-ray   replicas of the server on Ray Serve, which are killed, added and taken away
# make check  formatting, lint, types, structure, prose
# make bench  the benchmarks behind docs/log.md
# make bench-gate   kernels and a model against the commit before, or BEFORE=COMMIT, and against llama.cpp
# make map    the tables of docs/map.md, from the docstrings of the modules
# make docs   the book, from docs/ into build/site
# make pages  what is made of the source in docs/: tables, whole pages, a picture
# make clean  remove what make has made
#
# PYTHON selects the interpreter: make demo PYTHON=python3.12. ARGS goes to pytest, or to serve: make test ARGS="-k law".
# PIP_OPTIONS goes to pip where packages are installed.

# The newest that is there. Each is tried, since a name may stand for nothing that runs (as with pyenv) or cannot make
# an environment (as on Debian without python3-venv).
PYTHON ?= $(shell for name in python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import ensurepip' 2>/dev/null && echo $$name && exit; done; echo python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_OPTIONS)

# Else each of some hundred processes compiles what it imports, and pytest rewrites the assertions of all tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo serve test test-affected test-newest test-slow test-compiler test-sanitized test-processors test-browser test-clients test-agents test-ray test-wheel test-arm test-late test-long wheels prove check bench bench-gate map pages docs clean check-types check-structure \
	first-packages native-library
.DELETE_ON_ERROR:

demo: .venv/.ready
	$(BIN)/tokenmill generate --chat -p "How do plants make food?" --stop ". " --include-stop
	@echo; echo "What next:"; \
	echo "  $(BIN)/tokenmill chat                     # talk with it; /help lists what can be typed"; \
	echo "  $(BIN)/tokenmill generate -p \"The sea\" -n 40    # go on with a text"; \
	echo "  make serve                               # OpenAI's API and a page at http://127.0.0.1:8000"

serve: .venv/.ready-serve
	$(BIN)/tokenmill serve $(ARGS)

ELSEWHERE := not compiler and not long and not browser and not clients and not ray and not wheel and not arm
test: .venv/.ready-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 $(if $(SLOW),-m "$(ELSEWHERE)",--cases 2) $(ARGS)

# pytest's exit code 5: what the change reaches is left to other verbs.
test-affected: .venv/.ready-dev
	@files=$$($(BIN)/python -m tests.affected $(SINCE)) || exit 1; \
	if [ -z "$$files" ]; then echo "no test can see a change"; exit; fi; \
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 $$files $(ARGS) || [ $$? = 5 ]

test-slow: .venv/.ready-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 \
		-m "slow and $(ELSEWHERE)" $(ARGS)

test-compiler: .venv/.ready-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -o faulthandler_timeout=2700 -m "compiler and not long" $(ARGS)

test-sanitized: .venv/.ready-dev
	PYTHONPATH=. $(BIN)/python tests/program/sanitized.py $(ARGS)

test-processors: .venv/.ready-dev
	$(BIN)/python -m tests.processors $(ARGS)

test-browser: .venv/.ready-dev
	@command -v chromium chromedriver >/dev/null || { test "$$(id -u)" = 0 && apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium chromium-driver; } || \
		{ echo "error: no chromium and chromedriver: on Debian, apt install chromium chromium-driver"; exit 1; }
	$(BIN)/python -m pytest -n 2 --dist worksteal -m browser $(ARGS)

# In an environment of its own, made anew each time: what is newest changes. From PyPI torch comes with CUDA's libraries.
test-newest: | .venv/.made
	$(BIN)/python -m venv --clear .venv/newest
	.venv/newest/bin/python -m pip install --disable-pip-version-check $(PIP_OPTIONS) --upgrade pip hatchling editables
	.venv/newest/bin/python -m pip install --disable-pip-version-check $(PIP_OPTIONS) --no-build-isolation -e ".[dev]"
	.venv/newest/bin/python -m pip list --format=freeze
	.venv/newest/bin/python -m pytest -n 2 --dist worksteal $(ARGS)

test-late: .venv/.ready-dev
	$(BIN)/python -m pytest -n 6 --dist worksteal -p tests.late $(ARGS)

TRIALS := TOKENMILL_LAW_14_SECONDS=600 TOKENMILL_MUTATIONS=6250 TOKENMILL_PROMPTS=200 TOKENMILL_LOAD=1 \
	TOKENMILL_EXAMPLES=167 TOKENMILL_CONVERSATIONS=60 TOKENMILL_CORPUS_WALKS=50 TOKENMILL_SOAK_SECONDS=7200
test-long: .venv/.ready-dev .venv/.ready-ray
	$(TRIALS) $(BIN)/python -m pytest -n 2 --dist worksteal -o faulthandler_timeout=0 -m "not compiler and not long" \
		tests/laws/test_law_14_everything.py tests/laws/test_mutated_files.py tests/laws/test_law_05_every_proposer.py \
		tests/serve/loop/test_everything.py tests/serve/loop/test_load.py tests/serve/loop/test_same_text.py \
		tests/engine/test_session.py tests/settings/test_field.py tests/constrain/test_corpus.py \
		tests/laws/test_law_11_streaming.py tests/cache/test_state_snapshots.py \
		tests/program/test_compiled.py tests/weights/test_gguf.py tests/weights/gguf/test_families.py $(ARGS)
	$(TRIALS) $(BIN)/python -m pytest -n 2 --dist worksteal -o faulthandler_timeout=0 -m "long and not compiler" $(ARGS)

test-clients: .venv/.ready-clients .venv/.ready-npm .venv/.ready-libraries
	$(BIN)/python -m pytest -n 2 --dist worksteal -m clients --ignore tests/serve/agents $(ARGS)

test-agents: .venv/.ready-dev .venv/.ready-agents
	$(BIN)/python -m pytest -m clients tests/serve/agents $(ARGS)

test-ray: .venv/.ready-ray
	$(BIN)/python -m pytest -m "ray and not long" $(ARGS)

test-wheel: .venv/.ready-wheel
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py $(ARGS)

test-arm: .venv/.ready-dev .venv/.cross
	$(BIN)/python -m pytest -m arm tests/program/test_native_arm.py $(ARGS)

wheels: .venv/.ready-release .venv/.cross
	.venv/release/bin/python deploy/release/wheels.py $(ARGS)

check: .venv/.ready-dev
	$(MAKE) --no-print-directory -j 2 check-types check-structure

check-types:
	$(BIN)/ruff format --check src tests benchmarks examples deploy hatch_build.py
	$(BIN)/ruff check src tests benchmarks examples deploy hatch_build.py
	$(BIN)/mypy

check-structure:
	$(BIN)/python -m pytest tests/laws/test_law_13_structure.py tests/test_prose.py
	$(BIN)/python benchmarks/tables.py --check

prove: .venv/.ready-dev
	$(BIN)/python benchmarks/prove.py --tiny --logprobs --comparisons 100000 --concurrency 24 --max-tokens 10 \
		--time 36000 $(ARGS)

bench: .venv/.ready-dev
	$(BIN)/python benchmarks/host_cost.py
	$(BIN)/tokenmill bench peers --only transformers --program eager --dtype bfloat16 --scheme dense --rounds 3

# MODEL: a file or a short name. BEFORE: a commit.
bench-gate: .venv/.ready-dev
	PYTHONPATH=. $(BIN)/python benchmarks/kernels.py --before $(or $(BEFORE),HEAD~1) $(ARGS)
	PYTHONPATH=. $(BIN)/python benchmarks/gate.py $(or $(MODEL),smollm2-135m) --before $(or $(BEFORE),HEAD~1)

map: .venv/.ready-dev
	$(BIN)/python -m tests.rooms
	$(BIN)/python -m tests.trunk

pages: .venv/.ready-dev map
	$(BIN)/python -m tests.test_registry
	$(BIN)/python -m tests.test_models_page
	$(BIN)/python -m tests.book

docs: .venv/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m tests.book.built build/site

clean:
	rm -rf $(JAVASCRIPT)/node_modules $(AGENTS)/node_modules .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# Stamps: each step runs again only when what it depends on has changed. torch and what builds a wheel come first and by
# their exact versions, so that nothing else can pull in other ones; native/ is compiled meanwhile.
.venv/.ready: pyproject.toml constraints.txt hatch_build.py $(wildcard native/* native/*/*) | .venv/.made
	$(MAKE) --no-print-directory -j 2 first-packages native-library
	$(PIP) --no-build-isolation -e .
	touch $@

.venv/.ready-dev: .venv/.ready
	$(PIP) --no-build-isolation -e ".[dev]"
	touch $@

first-packages:
	$(PIP) $$(grep -E '^(torch|hatchling|editables)==' constraints.txt)

native-library:
	@$(BIN)/python hatch_build.py 2>/dev/null || true # where it fails, the installation says why

.venv/.ready-clients: .venv/.ready-dev
	$(PIP) --no-build-isolation -e ".[clients]"
	touch $@

.venv/.ready-ray: .venv/.ready-dev
	$(PIP) --no-build-isolation -e ".[ray]"
	touch $@

.venv/.ready-wheel: .venv/.ready-dev
	$(PIP) --no-build-isolation -e ".[wheel]"
	touch $@

.venv/.ready-release: deploy/release/requirements.txt | .venv/.made
	$(BIN)/python -m venv .venv/release
	.venv/release/bin/python -m pip install --disable-pip-version-check -r $<
	touch $@

# A compiler for aarch64 and an emulator of it: root gets them from Debian or Ubuntu, anybody else is told.
.venv/.cross: | .venv/.made
	@{ command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64-static; } >/dev/null || { test "$$(id -u)" = 0 && apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends g++-aarch64-linux-gnu qemu-user-static; } || \
		{ echo "error: no aarch64-linux-gnu-g++ or qemu-aarch64-static: on Debian, apt install g++-aarch64-linux-gnu qemu-user-static"; exit 1; }
	touch $@

JAVASCRIPT := tests/serve/clients/javascript
.venv/.ready-npm: $(JAVASCRIPT)/package-lock.json | .venv/.made .venv/.programs
	npm ci --prefix $(JAVASCRIPT) --no-audit --no-fund
	touch $@

# Clients that want other versions than constraints.txt has.
LIBRARIES := tests/serve/clients/libraries/requirements.txt
.venv/.ready-libraries: $(LIBRARIES) | .venv/.made
	$(BIN)/python -m venv .venv/libraries
	.venv/libraries/bin/python -m pip install --disable-pip-version-check -r $(LIBRARIES)
	touch $@

# Agents, each in a place of its own. Newer versions of npm leave it to the user to run what a package would run, and
# `npm ci` refuses a lock file without the packages of other platforms, which `npm install` adds without saving them.
AGENTS := tests/serve/agents
.venv/.ready-agents: $(AGENTS)/package-lock.json $(wildcard $(AGENTS)/requirements-*.txt) | .venv/.made .venv/.node
	npm install --prefix $(AGENTS) --no-save --no-audit --no-fund
	cd $(AGENTS)/node_modules/@anthropic-ai/claude-code && node install.cjs
	cd $(AGENTS)/node_modules/opencode-ai && node postinstall.mjs
	for name in aider mini; do $(BIN)/python -m venv .venv/agents/$$name && \
		.venv/agents/$$name/bin/python -m pip install --disable-pip-version-check \
		-r $(AGENTS)/requirements-$$name.txt || exit 1; done
	touch $@

# What test-clients and test-agents run that is no Python, as PROGRAM:PACKAGE: root gets it from Debian or Ubuntu, anybody
# else is told. RUNLEVEL=1 keeps services from being started.
define get_programs
	@missing=; for each in $(1); do \
		PATH=$$PATH:/usr/sbin; command -v $${each%%:*} >/dev/null || missing="$$missing $${each#*:}"; done; \
	if [ -n "$$missing" ] && { [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; }; then \
		echo "error: there is more to install:$$missing (the names are Debian's)"; exit 1; fi; \
	if [ -n "$$missing" ]; then \
		apt-get update && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; fi
	touch $@
endef

.venv/.node: | .venv/.made
	$(call get_programs,node:nodejs npm:npm)

.venv/.programs: | .venv/.made
	$(call get_programs,node:nodejs npm:npm nginx:nginx caddy:caddy curl:curl promtool:prometheus systemd-analyze:systemd)

.venv/.ready-docs: .venv/.ready
	$(PIP) --no-build-isolation -e ".[docs]"
	touch $@

.venv/.ready-serve: .venv/.ready
	$(PIP) --no-build-isolation -e ".[serve]"
	touch $@

.venv/.made:
	@test -x $(BIN)/python || command -v $(PYTHON) >/dev/null || \
		{ echo "error: no $(PYTHON): install Python 3.11 or newer, or give one as PYTHON=path"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $$($(PYTHON) --version) is too old: give Python 3.11 or newer as PYTHON=path"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		{ rm -rf .venv; echo "error: no venv: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
	touch $@
