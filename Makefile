# The work is done in scripts/. Goals that need packages or LibTorch install them first.
# JOBS=…       number of parallel compiler processes (default: cores, at most one per 2 GiB of memory)
# TORCH_DIR=…  LibTorch 2.11 to 2.13 to use instead of the one in .venv
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build programs train test test-gpu sanitize soak bench package docs site lint format clean
export JOBS TORCH_DIR

help:
	@echo 'make train    set up, build the trainer, and train a small GPT on 2 ranks with ZeRO-2'
	@echo 'make test     set up, lint, build and run all tests'
	@echo 'make test-gpu build and run the tests that need a GPU; installs nothing'
	@echo 'make sanitize set up and run the torch-free tests under the sanitizers (.ci/run runs it after make test)'
	@echo 'make build    set up and build into build/ (programs in build/bin)'
	@echo 'make programs set up and build everything, with benchmarks and the tests that need a GPU'
	@echo 'make bench    set up, build, and compare with Gloo, Open MPI, DDP, FSDP2 and DeepSpeed'
	@echo 'make soak     set up, build, and run every test, including the long matrices'
	@echo 'make package  set up, build, and make the Debian packages and a tarball in build/packages'
	@echo 'make docs     build the documentation site and the library reference in build/site'
	@echo 'make site     build the documentation and the calculators as a static site in build/site, and test it'
	@echo 'make lint     check formatting, include directions and file lengths'
	@echo 'make format   run clang-format on every source'
	@echo 'make clean    remove the build folders (clean-all: the Python environments too)'
	@echo
	@echo 'README.md lists the times. JOBS=n limits the compiler processes; TORCH_DIR=dir uses an existing LibTorch.'

setup:
	@scripts/setup.sh

build: setup
	@scripts/build.sh release

train:
	@scripts/build_trainer.sh
	@build/bin/tessera train --ranks 2 --zero 2 --metrics build/train.jsonl

test: setup
	@scripts/test.sh

# Without setup: machines with GPUs often have no package installation.
test-gpu:
	@scripts/test_gpu.py

programs: setup
	@scripts/test.sh programs

sanitize: setup
	@scripts/test.sh sanitize

soak: setup
	@scripts/test.sh soak

bench: build
	@scripts/bench.sh

package: setup
	@scripts/package.sh

docs:
	@scripts/docs.sh

site:
	@scripts/site.sh test

lint:
	@scripts/setup.sh packages
	@scripts/lint.sh

format:
	@scripts/setup.sh packages
	@scripts/lint.sh --fix

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz build-wasm

.PHONY: clean-all
clean-all: clean
	rm -rf .venv .peers-venv .interop-venv .schemathesis-venv .docs-venv
