/*
 * tokend in place of llm.c's llmc/dataloader.h: the same functions, for all processes of an MPI
 * job. Valid C11 and C++17. After an error they end all processes with MPI_Abort(). tokctl's
 * requests are not carried out: ../trainer.c shows how one process does that.
 */
#ifndef DATALOADER_H
#define DATALOADER_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tokend.h>

typedef struct {
	struct tokend *tokend;
	size_t B, T;
	int *inputs, *targets; /* [B][T], of the last dataloader_next_batch() */
	int process_rank, num_processes;
} DataLoader;

static inline void dataloader_fail(const DataLoader *loader, const char *why)
{
	fprintf(stderr, "process %d: %s\n", loader->process_rank, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

static inline int dataloader_warn(void *context, const char *line)
{
	(void)context;
	fprintf(stderr, "tokend: %s\n", line);
	return 0;
}

/* Attaches to a stream. @config: a config file, whose daemon is started if none runs; NULL: the
 * node's daemon. @run: the job's name, for tokctl. */
static inline void dataloader_init(DataLoader *loader, const char *config, const char *stream,
	const char *run, size_t B, size_t T, int process_rank, int num_processes)
{
	struct tokend_options options;
	struct tokend_shape shape;
	char why[500];

	memset(loader, 0, sizeof(*loader));
	loader->B = B;
	loader->T = T;
	loader->process_rank = process_rank;
	loader->num_processes = num_processes;
	loader->inputs = (int *)malloc(B * T * sizeof(int));
	loader->targets = (int *)malloc(B * T * sizeof(int));
	if (!loader->inputs || !loader->targets)
		dataloader_fail(loader, "out of memory");
	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.config = config;
	options.stream = stream;
	options.run = run;
	options.rank = (uint64_t)process_rank;
	options.world = (uint64_t)num_processes;
	options.micro_batch = (uint32_t)B;
	options.strict = 1; /* not the same rows twice, if mpirun is that of another MPI */
	options.warn = dataloader_warn;
	if (tokend_attach(&loader->tokend, &options, why, sizeof(why)) < 0)
		dataloader_fail(loader, why);
	tokend_shape(loader->tokend, &shape);
	if (shape.seq_len != T || shape.window_tokens <= T)
		dataloader_fail(loader, "seq_len: must be T, with one more token for the targets");
	if (tokend_annotations(loader->tokend) & TOKEND_LOSS_MASK)
		dataloader_fail(loader, "loss_mask: llm.c computes the loss of every token");
}

/*
 * Returns 1 and sets inputs and targets. Returns 0 at the end of a finite stream: then all
 * processes together have fewer samples left than one batch each, and none of them is taken.
 */
static inline int dataloader_next_batch(DataLoader *loader)
{
	struct tokend *t = loader->tokend;
	uint64_t needed = (uint64_t)loader->num_processes * loader->B;
	struct tokend_batch batch;
	int r = tokend_peek(t, &batch, 1);

	if (r == 1 && batch.next - tokend_taken(t) < needed)
		return 0;
	if (r == 1)
		r = tokend_next(t, &batch);
	if (r < 0)
		dataloader_fail(loader, tokend_why(t));
	if (r == 0)
		return 0;
	for (size_t b = 0, T = loader->T; b < loader->B; b++) {
		const char *row =
			(const char *)batch.tokens + b * batch.window_tokens * batch.token_bytes;

		if (tokend_widen_pair_int32(loader->inputs + b * T, loader->targets + b * T, row, T,
			    batch.token_bytes) < 0)
			dataloader_fail(loader, "a token is above INT32_MAX, too large for int");
	}
	tokend_release(t, &batch);
	return 1;
}

/* Continues at a cursor of tokend_cursor(), stored by any number of processes. */
static inline void dataloader_resume(DataLoader *loader, const void *cursor, size_t bytes)
{
	if (tokend_seek(loader->tokend, cursor, bytes, (uint64_t)loader->process_rank,
		    (uint64_t)loader->num_processes, (uint32_t)loader->B) < 0)
		dataloader_fail(loader, tokend_why(loader->tokend));
}

/* Begins another pass, at the stream's first sample. */
static inline void dataloader_reset(DataLoader *loader)
{
	static unsigned char begin[TOKEND_CURSOR_BYTES];
	int64_t bytes = tokend_stream(loader->tokend, begin, sizeof(begin));

	if (bytes < 0 || tokend_seek_pass(loader->tokend, begin, (size_t)bytes,
				 (uint64_t)loader->process_rank, (uint64_t)loader->num_processes,
				 (uint32_t)loader->B) < 0)
		dataloader_fail(loader, tokend_why(loader->tokend));
}

static inline void dataloader_free(DataLoader *loader)
{
	tokend_detach(loader->tokend);
	free(loader->inputs);
	free(loader->targets);
}

#endif
