# What can be done here, one word each. `make` alone lists them.

CARGO ?= cargo
# What `run` and `demo` back up, where the store is, where the backup is restored to.
DIR ?= .
STORE ?= store
RESTORED ?= restored
# The first of the seven ports of loopback that `cluster` uses.
PORT ?= 17420
# What `fuzz` runs, and how long.
TARGET ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
SECONDS_EACH ?= 60
# Power cuts of `simulate`, on each file system, and how many times its usual seeds the crash harness tries there.
POWER_CUTS ?= 300
CRASH_SEEDS ?= 20
# Simulated clusters of `simulate`.
CLUSTER_SEEDS ?= 1000000
# Seconds that `simulate` runs fsx, and how many times it kills the daemon under each load of a mounted filesystem.
FSX_SECONDS ?= 3600
FILESYSTEM_KILLS ?= 200
# Size of the corpus of `bench` (2130000000: that of the stated aims), and runs of each program.
BENCH_BYTES ?= 1000000000
BENCH_RUNS ?= 3
# Runs of each program of `bench-peers`.
PEERS_RUNS ?= 1
# The same of `bench-servers`, milliseconds that a byte is on its way (a section for each), and clients at once.
SERVERS_RUNS ?= 3
SERVERS_DELAY ?= 0,25
SERVERS_CLIENTS ?= 64
# Runs of each program of `bench-object-storage`, and milliseconds that a request takes longer (a section for each).
OBJECT_STORAGE_RUNS ?= 3
OBJECT_STORAGE_LATENCY ?= 0,30
# Bytes of a generation, all clients together, of `bench-papers` (128GiB: that of the papers), and repetitions.
PAPERS_SIZE ?= 1GiB
PAPERS_RUNS ?= 3
# The papers' experiments, by number. Those of mounted filesystems (E1) are of `bench-files`.
PAPERS = $(shell ls bench/papers/e[023]-*.toml | sort -V)
# Bytes that `bench-files` writes into each filesystem, repetitions, and where they are: on the disk to compare with.
FILES_SIZE ?= 4GiB
FILES_RUNS ?= 3
FILES_DIR ?= /var/tmp
# Unique data of `bench-memory`, which is written twice, memory of the daemon, and where the store is.
MEMORY_SIZE ?= 2GiB
MEMORY_LIMIT ?= 64MiB
MEMORY_DIR ?= /var/tmp

.PHONY: help run demo cluster test simulate lint bench bench-quick bench-papers bench-files bench-memory bench-peers bench-servers bench-object-storage fuzz mutations docs

help: ## Lists what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Settings: make demo DIR=/etc STORE=/tmp/store; make fuzz TARGET=wire SECONDS_EACH=600;"
	@echo "  make simulate CRASH_SEEDS=50 POWER_CUTS=1000 FSX_SECONDS=600 FILESYSTEM_KILLS=50"

run: ## Demo, then a disk of 1 TiB over NBD until Ctrl-C
	$(CARGO) build --release --bin onefold
	tools/demo --serve "$(DIR)" "$(STORE)" "$(RESTORED)"

demo: ## Backs DIR up twice into STORE, restores it to RESTORED, compares
	$(CARGO) build --release --bin onefold
	tools/demo "$(DIR)" "$(STORE)" "$(RESTORED)"

cluster: ## Three nodes on this machine, with ZooKeeper: kills the one that serves a volume and backups of DIR, compares
	$(CARGO) build --release --bin onefold
	tools/cluster "$(DIR)" "$(PORT)"

test: ## All tests; those that need a tool which is missing say so and skip
	CARGO=$(CARGO) tools/test-packages pjdfstest@0.2.2 fsx@0.3.2
	$(CARGO) test --workspace --no-fail-fast

simulate: ## Crash harness at twenty times its seeds, a million simulated clusters, many power cuts on ext4, XFS and btrfs, large loads and many kills of mounted filesystems (hours, as root)
	CARGO=$(CARGO) tools/test-packages fsx@0.3.2
	ONEFOLD_CRASH_SEEDS=$(CRASH_SEEDS) $(CARGO) test --no-fail-fast --package onefold-crash-harness --package onefold-upkeep --package onefold-engine --test exact --test defaults --test crash
	ONEFOLD_CLUSTER_SEEDS=$(CLUSTER_SEEDS) $(CARGO) test --package onefold-cluster --test simulation -- --nocapture
	ONEFOLD_POWER_CUTS=$(POWER_CUTS) $(CARGO) test --package onefold-tests --test power_cut -- --nocapture
	ONEFOLD_FILESYSTEM_KILLS=$(FILESYSTEM_KILLS) $(CARGO) test --package onefold-tests --test filesystem_kills -- --nocapture
	$(CARGO) test --package onefold-tests --test filesystem_loads -- --ignored --nocapture --test-threads=1
	ONEFOLD_FSX_SECONDS=$(FSX_SECONDS) $(CARGO) test --package onefold-tests --test filesystem_suites fsx -- --nocapture

# `tools/prose` refuses lines over 120 characters and words that are no plain English, in *.md files and comments.
lint: ## Formatting, clippy, licences, lock files, prose of documents and comments
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	tools/licences Cargo.toml
	tools/licences fuzz/Cargo.toml
	tools/prose
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --no-default-features --all-targets --locked -- -D warnings

bench: ## Benchmarks of the crates and of the whole (docs/benchmarks.md)
	$(CARGO) build --release --bin onefold --bin onefold-bench
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench run --size $(BENCH_BYTES) --runs $(BENCH_RUNS) --json "$${CARGO_TARGET_DIR:-target}"/bench.json
	$(CARGO) bench --workspace --exclude onefold-bench

bench-quick: ## The papers' experiments at a 256th of their size: a page with plots in some minutes (docs/benchmarks.md)
	$(CARGO) build --release --bin onefold
	"$${CARGO_TARGET_DIR:-target}"/release/onefold bench run $(PAPERS) --scale quick --repetitions 1 --out "$${CARGO_TARGET_DIR:-target}"/bench-quick.json
	"$${CARGO_TARGET_DIR:-target}"/release/onefold bench report "$${CARGO_TARGET_DIR:-target}"/bench-quick.json --quiet --out "$${CARGO_TARGET_DIR:-target}"/bench-quick.html
	@echo "Open in a browser: $$(realpath "$${CARGO_TARGET_DIR:-target}"/bench-quick.html)"

bench-papers: ## The same, larger and repeated: PAPERS_SIZE=128GiB for that of the papers
	$(CARGO) build --release --bin onefold
	"$${CARGO_TARGET_DIR:-target}"/release/onefold bench run $(PAPERS) --size $(PAPERS_SIZE) --repetitions $(PAPERS_RUNS) --out "$${CARGO_TARGET_DIR:-target}"/bench-papers.json
	"$${CARGO_TARGET_DIR:-target}"/release/onefold bench report "$${CARGO_TARGET_DIR:-target}"/bench-papers.json --quiet --out "$${CARGO_TARGET_DIR:-target}"/bench-papers.html
	@echo "Open in a browser: $$(realpath "$${CARGO_TARGET_DIR:-target}"/bench-papers.html)"

bench-peers: ## Other backup programs beside ours: installs what can be had, measures, writes target/peers.md
	$(CARGO) build --release --bin onefold --bin onefold-bench
	bench/peers/install "$${CARGO_TARGET_DIR:-target}"/peers
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench peers --size $(BENCH_BYTES) --runs $(PEERS_RUNS) --programs "$${CARGO_TARGET_DIR:-target}"/peers/bin --out "$${CARGO_TARGET_DIR:-target}"/peers

bench-servers: ## Backups over a connection, other servers beside ours, then many clients: writes target/servers.md and target/many.md
	$(CARGO) build --release --bin onefold --bin onefold-bench
	bench/peers/install "$${CARGO_TARGET_DIR:-target}"/peers servers
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench servers --size $(BENCH_BYTES) --runs $(SERVERS_RUNS) --delay $(SERVERS_DELAY) --programs "$${CARGO_TARGET_DIR:-target}"/peers/bin --out "$${CARGO_TARGET_DIR:-target}"/servers
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench servers --many $(SERVERS_CLIENTS) --out "$${CARGO_TARGET_DIR:-target}"/many

bench-object-storage: ## Backups in an S3 bucket, other programs beside ours, by requests, bytes and time: writes target/object-storage.md
	$(CARGO) build --release --bin onefold --bin onefold-bench
	bench/peers/install "$${CARGO_TARGET_DIR:-target}"/peers object-storage
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench object-storage --size $(BENCH_BYTES) --runs $(OBJECT_STORAGE_RUNS) --latency $(OBJECT_STORAGE_LATENCY) --programs "$${CARGO_TARGET_DIR:-target}"/peers/bin --out "$${CARGO_TARGET_DIR:-target}"/object-storage

bench-files: ## A mounted filesystem beside the disk's own and a passthrough (bindfs), as root: E1.1 to E1.5, trees of many files
	$(CARGO) build --release --bin onefold --bin onefold-bench
	"$${CARGO_TARGET_DIR:-target}"/release/onefold bench run bench/papers/e1-*.toml --size $(FILES_SIZE) --repetitions $(FILES_RUNS) --directory $(FILES_DIR) --out "$${CARGO_TARGET_DIR:-target}"/bench-files.json
	"$${CARGO_TARGET_DIR:-target}"/release/onefold bench report "$${CARGO_TARGET_DIR:-target}"/bench-files.json --quiet --out "$${CARGO_TARGET_DIR:-target}"/bench-files.html
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench run --parts files --runs $(FILES_RUNS) --disk $(FILES_DIR)

bench-memory: ## Profile cacheless within MEMORY_LIMIT of memory, page cache included, beside exact, as root: MEMORY_SIZE=20GiB
	$(CARGO) build --release --bin onefold --bin onefold-bench
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench memory --size $(MEMORY_SIZE) --limit $(MEMORY_LIMIT) --directory $(MEMORY_DIR) --json "$${CARGO_TARGET_DIR:-target}"/bench-memory.json

fuzz: ## Each fuzz target for a minute (nightly Rust, C++ compiler, cargo-fuzz)
	tools/fuzz $(SECONDS_EACH) $(TARGET)

mutations: ## Breaks the code on purpose: each change of tests/mutations must make its test fail (an hour)
	tools/mutations

docs: ## Documentation of the crates, in target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
