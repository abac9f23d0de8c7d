/*
 * bench-h2d SOCKET STREAM MICRO_BATCH: the rate of copies of a slot to GPU 0.
 *
 * Compares three sources: the registered ring, memory that the CUDA runtime pinned, and pageable
 * memory. Prints one line of JSON: GB/s of each (medians of ROUNDS rounds in which they take
 * turns), and the seconds and bytes of the registration.
 */
#include "bench/figures.h"
#include "client/lib/tokend.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15, COPIES = 20, WAYS = 3 };

static void cuda(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	fprintf(stderr, "bench-h2d: %s: %s\n", what, cudaGetErrorString(error));
	exit(1);
}

static double gb_per_s(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
	cudaEvent_t begin, end;
	float ms = 0;

	cuda(cudaEventCreate(&begin), "event");
	cuda(cudaEventCreate(&end), "event");
	cuda(cudaEventRecord(begin, stream), "record");
	for (int i = 0; i < COPIES; i++)
		cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copy");
	cuda(cudaEventRecord(end, stream), "record");
	cuda(cudaEventSynchronize(end), "synchronize");
	cuda(cudaEventElapsedTime(&ms, begin, end), "time");
	cuda(cudaEventDestroy(begin), "event");
	cuda(cudaEventDestroy(end), "event");
	return (double)bytes * COPIES / ms / 1e6;
}

static void gone(void *context, void *base, uint64_t bytes)
{
	(void)context, (void)bytes;
	cuda(cudaHostUnregister(base), "unregister");
}

int main(int argc, char **argv)
{
	struct tokend_options options = {.size = sizeof(options), .world = 1, .slots = 4};
	static double sample[WAYS][ROUNDS];
	void *base, *device, *pinned, *pageable;
	uint64_t ring_bytes;
	struct tokend_batch batch;
	cudaStream_t stream;
	struct tokend *t;
	char why[500];

	if (argc != 4) {
		fprintf(stderr, "usage: bench-h2d SOCKET STREAM MICRO_BATCH\n");
		return 2;
	}
	options.socket = argv[1];
	options.stream = argv[2];
	options.micro_batch = (uint32_t)strtoul(argv[3], NULL, 10);
	cuda(cudaSetDevice(0), "device");
	cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
	if (tokend_attach(&t, &options, why, sizeof(why)) < 0)
		return fprintf(stderr, "bench-h2d: %s\n", why), 1;

	double from = now_s(CLOCK_MONOTONIC);

	if (tokend_memory(t, &base, &ring_bytes, gone, NULL) != 1 || ring_bytes > UINT64_C(1) << 30)
		return fprintf(stderr, "bench-h2d: the ring has more than 1 GiB\n"), 1;
	cuda(cudaHostRegister(base, ring_bytes, cudaHostRegisterPortable), "register");

	double register_s = now_s(CLOCK_MONOTONIC) - from;

	if (tokend_next(t, &batch) != 1)
		return fprintf(stderr, "bench-h2d: %s\n", tokend_why(t)), 1;

	size_t bytes = (size_t)batch.rows * batch.window_tokens * batch.token_bytes;

	cuda(cudaMalloc(&device, bytes), "memory");
	cuda(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault), "pinned memory");
	pageable = malloc(bytes);
	if (!pageable)
		return 1;
	memcpy(pinned, batch.tokens, bytes);
	memcpy(pageable, batch.tokens, bytes);

	const void *ways[WAYS] = {batch.tokens, pinned, pageable};

	for (int round = -1; round < ROUNDS; round++) /* the first warms up */
		for (int way = 0; way < WAYS; way++) {
			double rate = gb_per_s(device, ways[way], bytes, stream);

			if (round >= 0)
				sample[way][round] = rate;
		}
	printf("{\"slot_bytes\": %zu, \"ring_gb_s\": %.3f, \"cuda_pinned_gb_s\": %.3f, "
	       "\"pageable_gb_s\": %.3f, \"register_s\": %.6f, \"pinned_bytes\": %llu}\n",
		bytes, median(sample[0], ROUNDS), median(sample[1], ROUNDS),
		median(sample[2], ROUNDS), register_s, (unsigned long long)ring_bytes);
	tokend_release(t, &batch);
	tokend_detach(t);
	return 0;
}
