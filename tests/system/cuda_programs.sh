#!/usr/bin/env bash
# Programs that use the CUDA runtime compile if its headers are installed.
set -euo pipefail
cd "$(dirname "$0")/../.."

include=${CUDA:-/usr/local/cuda}/include
if [ ! -e "$include/cuda_runtime.h" ]; then
	echo "skipped: no cuda_runtime.h in $include"
	exit 77
fi
for source in client/example/gpu_trainer.c bench/h2d.c; do
	gcc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Werror -I. -Iclient/lib \
		-isystem "$include" -fsyntax-only "$source"
done
# pin.c declares the driver's functions as the header does.
cat >"${TMPDIR:-/tmp}/prototypes.c" <<'END'
#include <cuda.h>
#include <stdint.h>
#define SAME_TYPE(a, b) __builtin_types_compatible_p(a, b)
#define SAME(call, ...) \
	_Static_assert(SAME_TYPE(__typeof__(&call), CUresult (*)(__VA_ARGS__)), #call)
SAME(cuMemHostRegister_v2, void *, size_t, unsigned);
SAME(cuMemHostUnregister, void *);
SAME(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, CUstream);
SAME(cuEventCreate, CUevent *, unsigned);
SAME(cuEventRecord, CUevent, CUstream);
SAME(cuEventQuery, CUevent);
SAME(cuEventDestroy_v2, CUevent);
SAME(cuCtxPushCurrent_v2, CUcontext);
SAME(cuCtxPopCurrent_v2, CUcontext *);
SAME(cuCtxGetCurrent, CUcontext *);
SAME(cuCtxGetDevice, CUdevice *);
SAME(cuCtxSynchronize, void);
SAME(cuStreamSynchronize, CUstream);
SAME(cuStreamIsCapturing, CUstream, CUstreamCaptureStatus *);
SAME(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode *);
SAME(cuDevicePrimaryCtxGetState, CUdevice, unsigned *, int *);
SAME(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
SAME(cuDevicePrimaryCtxRelease_v2, CUdevice);
SAME(cuDeviceGet, CUdevice *, int);
SAME(cuDeviceGetCount, int *);
SAME(cuGetErrorName, CUresult, const char **);
#if CUDA_VERSION >= 12050
SAME(cuCtxRecordEvent, CUcontext, CUevent);
#endif
_Static_assert(sizeof(CUdeviceptr) == sizeof(uint64_t), "differs in pin.c");
_Static_assert(sizeof(CUresult) == sizeof(int), "differs in pin.c");
_Static_assert(CUDA_ERROR_NOT_READY == 600, "differs in pin.c");
_Static_assert(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED == 900, "differs in pin.c");
_Static_assert(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD == 908, "differs in pin.c");
_Static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == 2, "differs in pin.c");
_Static_assert(CU_MEMHOSTREGISTER_PORTABLE == 1, "differs in pin.c");
_Static_assert(CU_MEMHOSTREGISTER_DEVICEMAP == 2, "differs in pin.c");
_Static_assert(CU_EVENT_DISABLE_TIMING == 2, "differs in pin.c");
END
gcc -std=gnu11 -isystem "$include" -fsyntax-only "${TMPDIR:-/tmp}/prototypes.c"
echo "compiles against $include"
