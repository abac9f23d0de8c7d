#!/usr/bin/env bash
# Programs that use the CUDA runtime compile if its headers are installed.
set -euo pipefail
cd "$(dirname "$0")/../.."

include=${CUDA:-/usr/local/cuda}/include
if [ ! -e "$include/cuda_runtime.h" ]; then
	echo "skipped: no cuda_runtime.h in $include"
	exit 77
fi
for source in tests/gpu/gpu_trainer.c bench/h2d.c tests/gpu/copies_trainer.c; do
	gcc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Werror -I. -Iclient/lib \
		-isystem "$include" -fsyntax-only "$source"
done
echo "compiles against $include"
