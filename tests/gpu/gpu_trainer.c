/*
 * A GPU trainer without a model: the next batch is copied while the current one is trained on. A
 * step is committed when it is queued, so the cursor stored at the end is that of the last batch
 * trained on, not of the one fetched ahead.
 *
 *   cc gpu_trainer.c -ltokend -lcudart -o trainer && ./trainer [STREAM [SOCKET]]
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <tokend.h>

enum { STEPS = 100 };

#define PIECE (UINT64_C(1) << 30) /* registered at once; no slot crosses a multiple of it */

struct lane {
	void *tokens; /* on the device: [rows][window_tokens], batch.token_bytes each */
	size_t bytes; /* size of `tokens` */
	cudaEvent_t arrived, free; /* recorded after the copy; after the step */
	struct tokend_batch batch;
	int copying; /* the batch is not released */
};

static void cuda(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	fprintf(stderr, "trainer: %s: %s\n", what, cudaGetErrorString(error));
	exit(1);
}

static void tokend(int r, const struct tokend *t)
{
	if (r >= 0)
		return;
	fprintf(stderr, "trainer: %s\n", tokend_why(t));
	exit(1);
}

/* The library unmaps a ring after this. @context: the stream of the copies. */
static void gone(void *context, void *base, uint64_t bytes)
{
	cuda(cudaStreamSynchronize(context), "synchronize");
	for (uint64_t at = 0; at < bytes; at += PIECE)
		if (cudaHostUnregister((char *)base + at) != cudaSuccess)
			cudaGetLastError(); /* it was not registered */
}

/* Registers the ring if it is a new one, so that copies from it are asynchronous. If CUDA refuses,
 * copies are slower, but work. Returns the number of bytes registered now. */
static uint64_t register_ring(struct tokend *t, cudaStream_t copies)
{
	uint64_t bytes, at = 0;
	void *base;

	if (tokend_memory(t, &base, &bytes, gone, copies) != 1)
		return 0;
	for (; at < bytes; at += PIECE) {
		uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;
		cudaError_t error =
			cudaHostRegister((char *)base + at, n, cudaHostRegisterPortable);

		if (error != cudaSuccess) {
			fprintf(stderr, "trainer: the ring is not registered: %s\n",
				cudaGetErrorString(error));
			cudaGetLastError(); /* or the next kernel reports it */
			return at;
		}
	}
	return bytes;
}

/* Releases the lane's slot if it was copied, or waits for that. */
static void release(struct tokend *t, struct lane *lane, int wait)
{
	if (!lane->copying)
		return;
	if (wait)
		cuda(cudaEventSynchronize(lane->arrived), "copy");
	else if (cudaEventQuery(lane->arrived) != cudaSuccess)
		return;
	tokend_release(t, &lane->batch);
	lane->copying = 0;
}

/* Takes the next batch and queues its copy. Returns 1, or 0 at the end of the stream. */
static int fetch(struct tokend *t, struct lane *lane, cudaStream_t copies, uint64_t *registered)
{
	struct tokend_batch *batch = &lane->batch;
	int r;

	release(t, lane, 1);
	r = tokend_next(t, batch);
	if (r != 1)
		return r;
	*registered += register_ring(t, copies);

	/* A restarted daemon serves wider tokens if its config has a wider dataset now. */
	size_t bytes = (size_t)batch->rows * batch->window_tokens * batch->token_bytes;

	if (bytes > lane->bytes) {
		cuda(cudaFree(lane->tokens), "memory");
		cuda(cudaMalloc(&lane->tokens, bytes), "memory");
		lane->bytes = bytes;
	}
	cuda(cudaStreamWaitEvent(copies, lane->free, 0), "wait");
	cuda(cudaMemcpyAsync(lane->tokens, batch->tokens, bytes, cudaMemcpyHostToDevice, copies),
		"copy");
	cuda(cudaEventRecord(lane->arrived, copies), "record");
	lane->copying = 1;
	return 1;
}

int main(int argc, char **argv)
{
	struct tokend_options options = {
		.size = sizeof(options),
		.stream = argc > 1 ? argv[1] : "train",
		.socket = argc > 2 ? argv[2] : NULL,
		.world = 1,
		.micro_batch = 8,
	};
	static struct lane lane[2];
	cudaStream_t copies, training;
	uint64_t registered = 0;
	struct tokend *t;
	char why[500];
	int ahead, step = 0;

	cuda(cudaSetDevice(0), "device");
	cuda(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "stream");
	cuda(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), "stream");
	for (int i = 0; i < 2; i++) {
		cuda(cudaEventCreateWithFlags(&lane[i].arrived, cudaEventDisableTiming), "event");
		cuda(cudaEventCreateWithFlags(&lane[i].free, cudaEventDisableTiming), "event");
	}
	if (tokend_attach(&t, &options, why, sizeof(why)) < 0)
		return fprintf(stderr, "trainer: %s\n", why), 1;
	tokend(tokend_commit(t, tokend_position(t)), t);

	tokend(ahead = fetch(t, &lane[0], copies, &registered), t);
	for (; step < STEPS && ahead; step++) {
		struct lane *now = &lane[step % 2];
		uint64_t end = now->batch.next;

		cuda(cudaStreamWaitEvent(training, now->arrived, 0), "wait");
		/* Forward, backward and optimizer step go here, on stream `training`. now->tokens
		 * is [rows][window_tokens]; now->batch.row says where each row comes from. */
		cuda(cudaEventRecord(now->free, training), "record");
		release(t, now, 0);
		tokend(ahead = fetch(t, &lane[(step + 1) % 2], copies, &registered), t);
		tokend(tokend_commit(t, end), t);
	}
	tokend(tokend_checkpoint(t, "example", NULL, 0), t);
	cuda(cudaDeviceSynchronize(), "synchronize");
	printf("%d steps, ring %s\n", step, registered ? "registered" : "not registered");
	tokend_detach(t);
	return 0;
}
