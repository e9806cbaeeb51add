# make demo   set-up and the main job on real data
# make test   set-up and every test
# make bench  speed, as ratios to real OpenZFS and to the raw devices
# make crash  power cuts from SEED=1, COUNT=20000 images; COUNT=EVENT:VARIANT replays one
# make simulate  pools on disks that fail and lie, from SEED=1, COUNT=20000 runs
# make fuzz   decoders and whole images against mutated input, SECONDS=60 each

CARGO ?= cargo
SECONDS ?= 60
SEED ?= 1
COUNT ?= 20000

.PHONY: build demo test lint bench fuzz crash simulate clean

build:
	$(CARGO) build --release --bin aquifer

demo:
	$(CARGO) build --profile demo --bin aquifer --bin powercut
	demo/run.sh target/demo/aquifer target/demo/powercut

test: lint
	tests/oracle.sh
	$(CARGO) test --workspace

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace

bench: build
	tests/oracle.sh
	bench/run.sh
	$(CARGO) run --release -p bench -- $${BENCH_DIR:-target/bench}/write

fuzz:
	fuzz/run.sh $(SECONDS)

simulate:
	$(CARGO) run --release -p sim -- simulate $(SEED) $(COUNT)

crash:
	$(CARGO) run --release -p sim -- crash $(SEED) $(COUNT)

clean:
	$(CARGO) clean
