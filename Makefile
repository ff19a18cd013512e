# Cheetah: every target can be run twice; `make` alone says what there is.
# Build results go to the user's cache, not into the checkout (CARGO_TARGET_DIR says where).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/cheetah
export CARGO_TARGET_DIR ?= $(CACHE)/target
export CHEETAH_BIN ?= $(CARGO_TARGET_DIR)/release/cheetah

cargo := scripts/cargo
SEEDS ?= 10000
# Kinds of faults that runs are made of alone, a twentieth as many of each.
KINDS ?= end-together kill-two end-load rot opened power
PREFIX ?= /usr/local
SECONDS_EACH ?= 60
bench = $(cargo) run --locked --release --quiet -p cheetah-lab --bin bench --
# A lint or formatting tool that is missing is an error in CI and a remark elsewhere.
without = if [ "$${CI:-}" = true ]; then echo "$(1) is missing"; exit 1; else echo "($(1) is missing: skipped outside CI)"; fi

.PHONY: help setup build install dist demo test format lint unit instructions sim e2e fuzz bench bench-local bench-front bench-lan \
  bench-ahead bench-remote bench-thesis bench-scale bench-seeds \
  bench-codes bench-disks bench-postmark bench-repair bench-owner bench-verify mutants faults unclean power-cuts sim-bugs walk clean

help: ## say what there is (the default)
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## install what is missing: packages by apt, a Rust toolchain
	@scripts/setup

build: setup ## build the program (release)
	@echo "== building the program"
	@$(cargo) build --release --locked -p cheetah
	@echo "built $(CHEETAH_BIN)"

install: build ## put the program into PREFIX (/usr/local) for everybody; it is one file, to be copied to other machines
	@install -D -m 755 "$(CARGO_TARGET_DIR)/release/cheetah" "$(DESTDIR)$(PREFIX)/bin/cheetah"
	@echo "installed $(DESTDIR)$(PREFIX)/bin/cheetah"

dist: setup ## one static program and a .deb of it, with services, manual and completions: prints both paths
	@echo "== building the program and its package"
	@scripts/dist

demo: build ## five donors, a real image examined, a file system that loses a donor while it is written
	@scripts/demo

test: setup format lint unit instructions sim e2e ## everything that CI runs
	@echo "== all tests passed"

format:
	@echo "== formatting"
	@if $(cargo) fmt --version >/dev/null 2>&1; then $(cargo) fmt --all --check; else $(call without,rustfmt); fi

lint:
	@echo "== lints"
	@if $(cargo) clippy --version >/dev/null 2>&1; \
	then $(cargo) clippy --locked --workspace --all-targets --quiet -- -D warnings; else $(call without,clippy); fi

unit: setup ## tests of every crate but the end-to-end ones
	@echo "== unit tests"
	@scripts/tests unit

instructions: setup ## the hot paths by counted instructions: fails where one takes more than its limit
	@echo "== instructions of the hot paths"
	@scripts/instructions

sim: setup ## the simulated world, SEEDS=10000 of them, and a fifth as many beyond what redundancy covers
	@echo "== simulator, $(SEEDS) seeds"
	@$(cargo) run --locked --release --quiet -p cheetah-sim -- --seeds $(SEEDS) --jobs 2
	@echo "== simulator, beyond redundancy"
	@$(cargo) run --locked --release --quiet -p cheetah-sim -- --seeds $$(( ($(SEEDS) + 4) / 5 )) --beyond --jobs 2
	@for kind in $(KINDS); do echo "== simulator, $$kind alone"; $(cargo) run --locked --release --quiet -p cheetah-sim -- \
		--seeds $$(( ($(SEEDS) + 19) / 20 )) --only $$kind --jobs 2 || exit 1; done

e2e: build ## real processes with real clients (root, for namespaces and loop devices)
	@echo "== end-to-end tests"
	@scripts/tests e2e

fuzz: setup ## every fuzz target for SECONDS_EACH=60 (needs cargo-fuzz and a nightly compiler)
	@$(cargo) fuzz --version >/dev/null 2>&1 || { echo "needs cargo-fuzz: cargo install cargo-fuzz"; exit 1; }
	@for target in $$($(cargo) fuzz list); do echo "== fuzzing $$target"; \
	  $(cargo) fuzz run "$$target" -- -max_total_time=$(SECONDS_EACH); done

bench: build ## Cheetah beside its peers and the limits: table, results.json, plots (root; QUICK=1 shortens)
	@echo "== benchmark"
	@$(bench)

bench-local: build ## of it: loopback, the client library and the export beside nbdkit, qemu-nbd, nbd-server (root)
	@echo "== benchmark, loopback"
	@$(bench) local

bench-front: build ## of it: the file beside nbdfuse on nbdkit (root)
	@echo "== benchmark, front ends"
	@$(bench) front

bench-lan: build ## of it: five hosts with links of 1 and 10 Gbit/s beside iperf3, and a long way (root)
	@echo "== benchmark, hosts and links"
	@$(bench) lan far

bench-ahead: build ## of it: read-ahead by rule and round trip, 0 to 50 ms, over 1 Gbit/s (root; eight minutes)
	@echo "== benchmark, read-ahead"
	@$(bench) ahead

bench-remote: build ## by itself: triage of a far disk by nbdfuse, nbdkit's cache and `open`, 0 to 50 ms (root; 12 minutes)
	@echo "== benchmark, a far disk"
	@$(bench) remote

bench-thesis: build ## of it: the table of the thesis of 2006, beside disks of then and now (root)
	@echo "== benchmark, thesis"
	@$(bench) thesis

bench-scale: build ## of it: how cost grows with donors, connections, volumes and simulated pools (root)
	@echo "== benchmark, growth"
	@$(bench) scale

bench-seeds: build ## of it: md5sum, tar, fls, foremost and others on an image of SEEDS_MIB=4096 (root; half an hour)
	@echo "== benchmark, tools on an image"
	@$(bench) seeds

bench-codes: setup ## by itself: the erasure code and the checksum, beside their plain reference
	@echo "== benchmark, codes"
	@$(bench) codes

bench-repair: build ## by itself: writes, degraded reads and a rebuild beside iperf3 (root; 10 GiB of memory)
	@echo "== benchmark, redundancy"
	@$(bench) parity repair

bench-disks: build ## by itself: a volume on a disk beside the disk, nbdfuse on nbdkit and memory (root; five minutes)
	@echo "== benchmark, disks"
	@$(bench) disks

bench-postmark: build ## by itself: PostMark on a disk and on pools of 2 to 4, beside DRALIC's (root; 2 h, QUICK=1 11 min; WRITE_BACK=1)
	@scripts/setup postmark
	@echo "== benchmark, PostMark"
	@$(bench) postmark

bench-owner: build ## by itself: how long an owner waits for 4 GiB that a donor's data takes (root)
	@echo "== benchmark, owner"
	@$(bench) owner

bench-verify: build ## by itself: verify, load and checked reads beside what checksums cost alone (root; 10 min, 18 GiB; QUICK=1 3 min)
	@echo "== benchmark, verification"
	@$(bench) verify

mutants: setup ## small changes of core and nbd that some test has to notice (SEED=1 OF_CORE=300 OF_NBD=100; hours)
	@echo "== mutants"
	@scripts/mutants $(or $(SEED),1) $(or $(OF_CORE),300) $(or $(OF_NBD),100)

faults: build ## the fault table: donors fail under a checked load (root; REPEATS=1 ONLY=mirror:2/kill SEED= RESUME=1)
	@echo "== fault table"
	@$(cargo) run --locked --release --quiet -p cheetah-lab --bin faults

unclean: build ## fifty times a donor (killed, stopped, cut off) and the daemon end together under eight writers; who seals and saves is killed (20 min)
	@echo "== unclean stops"
	@$(cargo) test --locked -p cheetah-lab --test unclean --test killed_sealing -- --ignored --nocapture

power-cuts: build ## disks lose power under writers and an ext4, and what their caches had (root; CUTS=200, twenty minutes)
	@echo "== power cuts"
	@$(cargo) test --locked -p cheetah-lab --test power_cuts -- --ignored --nocapture --test-threads=1

walk: setup ## every order in which writers and a donor of a small world can end (PATHS=10000000; more than an hour)
	@echo "== walking"
	@$(cargo) run --locked --release --quiet -p cheetah-sim -- --walk $(or $(PATHS),10000000)

sim-bugs: setup ## how soon the simulator finds each planted bug: a table (SAMPLES=21; an hour)
	@echo "== planted bugs"
	@$(cargo) run --locked --release --quiet -p cheetah-sim -- --bugs $(or $(SAMPLES),21)

clean: ## remove what was built
	@echo "removing $(CARGO_TARGET_DIR)"
	@rm -rf -- "$(CARGO_TARGET_DIR)"
