# Thin: the work is in scripts/. Every goal that needs a set-up machine sets it up first.
# JOBS=…       compilers at once (default: the cores, at most one per 2 GiB of memory)
# TORCH_DIR=…  a LibTorch 2.11 to 2.13 to use instead of the one in .venv
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build train test sanitize soak bench package docs lint format clean
export JOBS TORCH_DIR

help:
	@echo 'make train    set up, build what it needs, and train a small GPT on 2 ranks with ZeRO-2'
	@echo 'make test     set up, lint, build and run all tests'
	@echo 'make sanitize set up and run the torch-free tests under the sanitizers (.ci/run: after make test)'
	@echo 'make build    set up and build into build/ (programs in build/bin)'
	@echo 'make bench    set up, build, and measure against the peers'
	@echo 'make soak     set up, build, and run every test, the long matrices too'
	@echo 'make package  set up, build, and make the Debian packages and a tarball in build/packages'
	@echo 'make docs     the documents as a site and the reference of the library, in build/site'
	@echo 'make lint     format, include directions, file lengths'
	@echo 'make format   clang-format every first-party source'
	@echo 'make clean    remove the build folders (clean-all: the Python environments too)'
	@echo
	@echo 'README.md says how long each takes. JOBS=n limits the compilers; TORCH_DIR=dir uses a LibTorch that is already there.'

setup:
	@scripts/setup.sh

build: setup
	@scripts/build.sh release

train:
	@scripts/build_trainer.sh
	@build/bin/tessera train --ranks 2 --zero 2 --metrics build/train.jsonl

test: setup
	@scripts/test.sh

sanitize: setup
	@scripts/test.sh sanitize

soak: setup
	@scripts/test.sh soak

bench: build
	@scripts/bench.sh

package: build
	@scripts/package.sh

docs:
	@scripts/docs.sh

lint:
	@scripts/setup.sh packages
	@scripts/lint.sh

format:
	@scripts/setup.sh packages
	@scripts/lint.sh --fix

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz

.PHONY: clean-all
clean-all: clean
	rm -rf .venv .peers-venv .interop-venv .schemathesis-venv .docs-venv
