/*
 * tokend in place of llm.c's llmc/dataloader.h: the same functions, for all processes of an MPI
 * job, and an operator's requests (tokctl mix, skip, checkpoint, drain). Valid C11 and C++17.
 *
 * After an error the functions end all processes with MPI_Abort().
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
	uint64_t handled; /* number of the last request */
	uint64_t asked;	  /* number of the request that dataloader_done() answers, or 0 */
	char tag[65];	  /* of that request; "": none */
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

/* ---- an operator's requests ---- */

enum { CONTROL_SAVE = 1, CONTROL_STOP = 2 };

/* The greatest value of all processes, and the first process that has it: MPI_LONG_INT. */
struct dataloader_greatest {
	long value;
	int process;
};

static inline struct dataloader_greatest dataloader_greatest(const DataLoader *loader, long value)
{
	struct dataloader_greatest mine = {value, loader->process_rank}, of_all;

	MPI_Allreduce(&mine, &of_all, 1, MPI_LONG_INT, MPI_MAXLOC, MPI_COMM_WORLD);
	return of_all;
}

/* A daemon that was lost has forgotten the request: tokctl reports that nobody answered. */
static inline void dataloader_answer(
	DataLoader *loader, uint64_t number, enum tokend_outcome outcome, const char *text)
{
	if (tokend_request_number(loader->tokend) == number)
		(void)tokend_answer(loader->tokend, number, outcome, text);
}

/*
 * Carries out an operator's request on all processes, or on none. Call it on all of them after each
 * step. Returns 0, or what the trainer has to do: CONTROL_SAVE: save the model, then call
 * dataloader_done(); CONTROL_STOP: then leave the training loop.
 */
static inline int dataloader_control(DataLoader *loader)
{
	static struct tokend_request request; /* 64 KiB: too large for some stacks */
	struct tokend *t = loader->tokend;
	struct dataloader_greatest asked, failed;
	uint64_t number, acts_from = 0, first, mine;
	int stops, saves, r = 0;
	const char *tag;
	char text[600];

	if (tokend_attend(t) < 0) /* finds a restarted daemon even while batches are ready */
		dataloader_fail(loader, tokend_why(t));
	number = tokend_request_number(t);
	asked = dataloader_greatest(loader, number == loader->handled ? 0 : (long)number);
	if (asked.value == 0)
		return 0;
	if (loader->process_rank == asked.process && tokend_request(t, &request) < 0)
		request.number = 0;
	MPI_Bcast(&request, sizeof(request), MPI_BYTE, asked.process, MPI_COMM_WORLD);
	loader->handled = request.number ? request.number : (uint64_t)asked.value;
	if (request.number == 0) /* withdrawn in the meantime */
		return 0;

	stops = strcmp(request.kind, "drain") == 0 || strcmp(request.kind, "rescale") == 0;
	saves = stops || strcmp(request.kind, "checkpoint") == 0;
	if (!saves)
		r = tokend_obey(t, request.kind, request.args, &acts_from);
	first = mine = tokend_fingerprint(t); /* different if the daemons' configs differ */
	MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	failed = dataloader_greatest(loader, r < 0 || mine != first);
	if (failed.value) {
		snprintf(text, sizeof(text), "process %d: %s", loader->process_rank,
			r < 0 ? tokend_why(t) : "its order differs from that of process 0");
		if (!saves && r == 0 && tokend_undo(t) < 0)
			dataloader_fail(loader, tokend_why(t));
		MPI_Bcast(text, sizeof(text), MPI_CHAR, failed.process, MPI_COMM_WORLD);
		dataloader_answer(loader, request.number, TOKEND_FAILED, text);
		return 0;
	}
	if (!saves) {
		snprintf(text, sizeof(text), "acts from %llu", (unsigned long long)acts_from);
		dataloader_answer(loader, request.number, TOKEND_DONE, text);
		return 0;
	}
	loader->asked = request.number;
	loader->tag[0] = 0;
	tag = strncmp(request.args, "tag ", 4) == 0 ? request.args : strstr(request.args, "\ntag ");
	if (tag)
		sscanf(tag + strspn(tag, "\n"), "tag %64[^\n]", loader->tag);
	return stops ? CONTROL_SAVE | CONTROL_STOP : CONTROL_SAVE;
}

/* Reports that the model is saved. All processes call it, and wait until those that save have done
 * so. @text is one line for the operator. */
static inline void dataloader_done(DataLoader *loader, const char *text)
{
	struct tokend *t = loader->tokend;
	int r = 0;

	MPI_Barrier(MPI_COMM_WORLD);
	if (loader->process_rank == 0 && loader->tag[0])
		r = tokend_checkpoint(t, loader->tag, NULL, 0);
	dataloader_answer(loader, loader->asked, r < 0 ? TOKEND_FAILED : TOKEND_DONE,
		r < 0 ? tokend_why(t) : text);
}

#endif
