# make demo   set up and show the main uses on real data
# make test   set up and run every test
# make test-long  the same, and all tests that take hours
# make posix  third-party file system suites on a mount, fsx for SECONDS=60 each; snapshot tools with our zfs
# make bench  speed, as ratios to real OpenZFS and to the raw devices
# make crash  power cuts from SEED=1, COUNT=20000 images; COUNT=EVENT:VARIANT replays one
# make simulate  pools on disks that fail and lie, from SEED=1, COUNT=20000 runs
# make full   pools of every layout, filled to the last byte and emptied, from SEED=1, COUNT=20000 pools
# make install  program, links, man pages, completions, units: PREFIX=/usr/local, DESTDIR=; make uninstall removes them
# make deb    a Debian package in target/
# make kill   the built daemon, killed under load COUNT times from SEED=1 (needs FUSE)
# make jobs   COUNT pools from SEED=1 with odd changes in the midst of scrubs, resilvers, expansions, removals … (needs FUSE, zdb)
# make life   COUNT pools from SEED=1 under random administration, damage and kills, by the built program (needs FUSE, zdb)
# make zts    all of OpenZFS's own functional tests (root, packages zfs-test and ksh); 2.4's where tests/oracle.sh installed it; TREE=/ the machine's own; JOBS=2 groups at a time
# make kernel  pools of ours in a kernel's OpenZFS (in a virtual machine) and back (root; the machine is created once)
# make fuzz   decoders and whole images against mutated input, SECONDS=60 each

CARGO ?= cargo
SECONDS ?= 60
SEED ?= 1
COUNT ?= 20000
TREE ?=
JOBS ?= 2

PREFIX ?= /usr/local
DESTDIR ?=
BINARY ?= target/release/aquifer

.PHONY: install uninstall deb build demo test test-long lint posix kernel zts bench fuzz crash simulate full kill jobs life clean

build:
	$(CARGO) build --release --bin aquifer

# An existing binary is not rebuilt, so that root needs no compiler: make build && sudo make install
$(BINARY):
	$(CARGO) build --release --bin aquifer

install: $(BINARY)
	BINARY=$(BINARY) PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) packaging/install.sh install

uninstall:
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) packaging/install.sh uninstall

deb: $(BINARY)
	BINARY=$(BINARY) packaging/deb.sh

demo:
	$(CARGO) build --profile demo --bin aquifer --bin powercut
	demo/run.sh target/demo/aquifer target/demo/powercut

# OpenZFS's tools are installed beside the first build.
test:
	@tests/oracle.sh & oracle=$$!; $(MAKE) lint; lint=$$?; wait $$oracle; exit $$lint
	$(CARGO) run -p xtask -- test

# All long tests: the suite with its slow tests, then power cuts, simulation, fuzzing, kills, mounts, a kernel, OpenZFS's suite.
# docs/testing.md has the last results: enter a new one with date and commit.
test-long: test
	$(CARGO) run -p xtask -- test sim testkit cli/replicate -- --ignored
	$(MAKE) crash COUNT=20000
	$(MAKE) simulate COUNT=2000
	$(MAKE) full COUNT=500
	$(MAKE) kill COUNT=200
	$(MAKE) jobs COUNT=50
	$(MAKE) life COUNT=100
	$(MAKE) fuzz
	$(MAKE) posix
	$(MAKE) kernel
	$(MAKE) zts

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace

posix: build
	tests/oracle.sh
	tests/posix.sh target/release/aquifer $(SECONDS)
	tests/clients.sh target/release/aquifer

kernel: build
	tests/oracle.sh
	tests/kernel/run.sh target/release/aquifer target/kernel
	tests/kernel/run.sh target/release/aquifer target/kernel-2.4 trixie

# Resumable: groups with results of the same binary and suite are left out.
zts:
	$(CARGO) build --bin aquifer
	$(CARGO) run -p xtask -- zts --all --jobs $(JOBS) $(if $(TREE),--tree $(TREE))

bench: build
	tests/oracle.sh
	bench/keep.sh read bench/run.sh
	bench/keep.sh mounts bench/mounts.sh
	$(CARGO) build --release -p zfuse --example nothing
	bench/keep.sh small bench/small.sh
	bench/keep.sh targets env SVG=docs/speed.svg bench/targets.sh
	bench/keep.sh send bench/send.sh
	bench/keep.sh dedup bench/dedup.sh
	bench/keep.sh upkeep bench/upkeep.sh
	bench/keep.sh write $(CARGO) run --release -p bench -- $${BENCH_DIR:-target/bench}/write

fuzz:
	fuzz/run.sh $(SECONDS)

simulate:
	$(CARGO) run --release -p sim -- simulate $(SEED) $(COUNT)

full:
	$(CARGO) run --release -p sim -- full $(SEED) $(COUNT)

crash:
	$(CARGO) run --release -p sim -- crash $(SEED) $(COUNT)

kill: build
	$(CARGO) run --release -p sim --bin kill -- target/release/aquifer $(SEED) $(COUNT)

jobs: build
	tests/oracle.sh
	$(CARGO) run --release -p sim --bin jobs -- target/release/aquifer $(SEED) $(COUNT)

life: build
	tests/oracle.sh
	tests/life.py target/release/aquifer $(SEED) $(COUNT)

clean:
	$(CARGO) clean
