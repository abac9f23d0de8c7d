/*
 * A GPU trainer without a model: the next batch is copied while the current one is trained on. A
 * batch copied ahead is not taken yet, so the cursor stored at the end is that of the last batch
 * trained on.
 *
 *   cc gpu_trainer.c -ltokend -lcudart -o trainer && ./trainer [STREAM [SOCKET]]
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <tokend.h>

enum { STEPS = 100 };

struct lane {
	void *tokens; /* on the device: [rows][window_tokens], batch.token_bytes each */
	size_t bytes; /* size of `tokens` */
	cudaEvent_t arrived, free; /* recorded after the copy; after the step */
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

/* Queues a copy of the next batch. Returns 1, or 0 if there is none (yet, unless @wait). */
static int copy(struct tokend *t, struct lane *lane, cudaStream_t stream, int wait)
{
	struct tokend_batch batch;
	int r = tokend_peek(t, &batch, wait);

	if (r != 1)
		return r == TOKEND_EAGAIN ? 0 : r;
	/* A restarted daemon serves wider tokens if its config has a wider dataset now. */
	size_t bytes = (size_t)batch.rows * batch.window_tokens * batch.token_bytes;

	if (bytes > lane->bytes) {
		cuda(cudaFree(lane->tokens), "memory");
		cuda(cudaMalloc(&lane->tokens, bytes), "memory");
		lane->bytes = bytes;
	}
	cuda(cudaStreamWaitEvent(stream, lane->free, 0), "wait");
	r = tokend_copy(t, &batch, (uint64_t)(uintptr_t)lane->tokens, stream);
	if (r == 0)
		cuda(cudaEventRecord(lane->arrived, stream), "record");
	return r < 0 ? r : 1;
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
	struct tokend_shape shape;
	struct tokend_batch batch;
	struct lane lane[2];
	cudaStream_t copies, training;
	struct tokend *t;
	char why[500];
	int ahead = 0, step = 0, r;

	cuda(cudaSetDevice(0), "device");
	cuda(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "stream");
	cuda(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), "stream");
	if (tokend_attach(&t, &options, why, sizeof(why)) < 0)
		return fprintf(stderr, "trainer: %s\n", why), 1;
	if (tokend_pin(t, 0) < 0) /* copies are slower, but work */
		fprintf(stderr, "trainer: %s\n", tokend_why(t));
	tokend_shape(t, &shape);
	for (int i = 0; i < 2; i++) {
		lane[i].bytes = (size_t)shape.rows * shape.window_tokens * shape.token_bytes;
		cuda(cudaMalloc(&lane[i].tokens, lane[i].bytes), "memory");
		cuda(cudaEventCreateWithFlags(&lane[i].arrived, cudaEventDisableTiming), "event");
		cuda(cudaEventCreateWithFlags(&lane[i].free, cudaEventDisableTiming), "event");
	}

	for (; step < STEPS; step++) {
		struct lane *now = &lane[step % 2];

		if (!ahead)
			tokend(ahead = copy(t, now, copies, 1), t);
		tokend(r = tokend_next(t, &batch), t);
		if (r == 0)
			break;
		cuda(cudaStreamWaitEvent(training, now->arrived, 0), "wait");
		/* Forward, backward and optimizer step go here, on stream `training`. now->tokens
		 * is [rows][window_tokens]; batch.row says where each row comes from. */
		cuda(cudaEventRecord(now->free, training), "record");
		tokend(ahead = copy(t, &lane[(step + 1) % 2], copies, 0), t);
	}
	tokend(tokend_checkpoint(t, "example", NULL, 0), t);
	cuda(cudaDeviceSynchronize(), "synchronize");
	tokend_shape(t, &shape);
	printf("%d steps, ring %s\n", step, shape.pinned_bytes ? "registered" : "not registered");
	tokend_detach(t);
	return 0;
}
