#!/usr/bin/env bash
# The parsers survive the fuzzers' initial files and former findings; `make fuzz` looks for more.
set -euo pipefail
cd "$(dirname "$0")/../.."
build/venv/bin/python tests/fuzz/run.py --seconds 0
