# What can be done here, one word each. `make` alone lists them.

CARGO ?= cargo
# What `run` and `demo` back up, where the store is, where the backup is restored to.
DIR ?= .
STORE ?= store
RESTORED ?= restored
# What `fuzz` runs, and how long.
TARGET ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
SECONDS_EACH ?= 60
# Size of the corpus of `bench` (2130000000: that of the stated aims), and runs of each program.
BENCH_BYTES ?= 1000000000
BENCH_RUNS ?= 3
# Runs of each program of `bench-peers`.
PEERS_RUNS ?= 1

.PHONY: help run demo test lint bench bench-peers fuzz docs

help: ## Lists what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Settings: make demo DIR=/etc STORE=/tmp/store; make fuzz TARGET=wire SECONDS_EACH=600"

run: ## Demo, then a disk of 1 TiB over NBD until Ctrl-C
	$(CARGO) build --release --bin onefold
	tools/demo --serve "$(DIR)" "$(STORE)" "$(RESTORED)"

demo: ## Backs DIR up twice into STORE, restores it to RESTORED, compares
	$(CARGO) build --release --bin onefold
	tools/demo "$(DIR)" "$(STORE)" "$(RESTORED)"

test: ## All tests; those that need a tool which is missing say so and skip
	tools/test-packages
	$(CARGO) test --workspace --no-fail-fast

lint: ## Formatting, clippy, licences, lock files
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	tools/licences Cargo.toml
	tools/licences fuzz/Cargo.toml
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --no-default-features --all-targets --locked -- -D warnings

bench: ## Benchmarks of the crates and of the whole (docs/benchmarks.md)
	$(CARGO) build --release --bin onefold --bin onefold-bench
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench run --size $(BENCH_BYTES) --runs $(BENCH_RUNS) --json "$${CARGO_TARGET_DIR:-target}"/bench.json
	$(CARGO) bench --workspace --exclude onefold-bench

bench-peers: ## Other backup programs beside ours: installs what can be had, measures, writes target/peers.md
	$(CARGO) build --release --bin onefold --bin onefold-bench
	bench/peers/install "$${CARGO_TARGET_DIR:-target}"/peers
	"$${CARGO_TARGET_DIR:-target}"/release/onefold-bench peers --size $(BENCH_BYTES) --runs $(PEERS_RUNS) --programs "$${CARGO_TARGET_DIR:-target}"/peers/bin --out "$${CARGO_TARGET_DIR:-target}"/peers

fuzz: ## Each fuzz target for a minute (nightly Rust, C++ compiler, cargo-fuzz)
	tools/fuzz $(SECONDS_EACH) $(TARGET)

docs: ## Documentation of the crates, in target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
