/*
 * The loop of llm.c's train_gpt2.c on several processes. Started again, on any number of processes,
 * it resumes. In llm.c's directory:
 *
 *   mpicc train_llmc.c $(pkg-config --cflags --libs tokend) -lm -o train_llmc
 *   mpirun -n 2 ./train_llmc [STEPS]
 *
 * If tokend was installed with pip: export PKG_CONFIG_PATH=$(python -m tokend --pkgconfigdir)
 * tokctl's requests are not carried out: ../trainer.c shows how one process does that.
 */
#define TESTING	     // train_gpt2.c without main()
#define DATALOADER_H // tokend: without llmc/dataloader.h
#include "train_gpt2.c"

#include <mpi.h>
#include <tokend.h> // tokend
#include <unistd.h>

enum { B = 2, T = 32 };
static int rank, world, inputs[B * T], targets[B * T];
static char cursor[TOKEND_CURSOR_BYTES];
static const char *const state_path = "state.bin", *const new_path = "state.bin.new";

static void stop_if(int failed, const char *why)
{
	if (failed) {
		fprintf(stderr, "process %d: %s\n", rank, why);
		MPI_Abort(MPI_COMM_WORLD, 1);
		exit(1);
	}
}

static int warn(void *context, const char *line)
{
	(void)context;
	return fprintf(stderr, "tokend: %s\n", line) < 0;
}

static struct tokend *attach(void)
{
	struct tokend_options options = {
		.size = sizeof(options),
		.stream = "train",
		.run = "llmc", /* the job's name, for tokctl */
		.rank = (uint64_t)rank,
		.world = (uint64_t)world,
		.micro_batch = B,
		.strict = 1, /* not the same rows twice, if mpirun is that of another MPI */
		.warn = warn,
	};
	struct tokend_shape shape;
	struct tokend *t;
	char why[500];

	stop_if(tokend_attach(&t, &options, why, sizeof(why)) < 0, why);
	tokend_shape(t, &shape);
	stop_if(shape.seq_len != T || shape.window_tokens <= T,
		"seq_len: must be T, with one more token for the targets");
	stop_if(tokend_annotations(t) & TOKEND_LOSS_MASK,
		"loss_mask: llm.c computes the loss of every token");
	return t;
}

/*
 * Sets inputs and targets. Returns 0 at the end of a finite stream: then all processes together
 * have fewer samples left than one batch each, and none of them is taken.
 */
static int next_batch(struct tokend *t)
{
	struct tokend_batch batch;
	int r = tokend_peek(t, &batch, 1);

	if (r == 1 && batch.next - tokend_taken(t) < (uint64_t)world * B)
		return 0;
	if (r == 1)
		r = tokend_next(t, &batch);
	stop_if(r < 0, tokend_why(t));
	for (int b = 0; r == 1 && b < B; b++) {
		const char *row = batch.tokens;

		row += (uint64_t)b * batch.window_tokens * batch.token_bytes;
		stop_if(tokend_widen_pair_int32(
				inputs + b * T, targets + b * T, row, T, batch.token_bytes) < 0,
			"a token is above INT32_MAX, too large for int");
	}
	if (r == 1)
		tokend_release(t, &batch);
	return r;
}

/* Step, weights, moments and cursor in one file, which is replaced as a whole. */
static void save_state(int step, const GPT2 *model, struct tokend *t)
{
	int64_t bytes = tokend_cursor(t, cursor, sizeof(cursor)); // tokend
	size_t n = model->num_parameters;
	FILE *file = fopen(new_path, "wb");

	stop_if(!file || bytes < 0, new_path);
	fwrite(&step, sizeof(step), 1, file);
	fwrite(model->params_memory, sizeof(float), n, file);
	fwrite(model->m_memory, sizeof(float), n, file);
	fwrite(model->v_memory, sizeof(float), n, file);
	fwrite(cursor, 1, (size_t)bytes, file); // tokend: not shard and sample
	stop_if(fflush(file) || ferror(file) || fsync(fileno(file)), new_path);
	fclose(file);
	stop_if(rename(new_path, state_path), state_path);
}

/* Returns the step, 0 if there is no file. */
static int load_state(GPT2 *model, struct tokend *t)
{
	size_t n = model->num_parameters, bytes;
	FILE *file = fopen(state_path, "rb");
	int step = 0;

	if (!file)
		return 0;
	model->m_memory = (float *)calloc(n, sizeof(float));
	model->v_memory = (float *)calloc(n, sizeof(float));
	stop_if(fread(&step, sizeof(step), 1, file) != 1 ||
			fread(model->params_memory, sizeof(float), n, file) != n ||
			fread(model->m_memory, sizeof(float), n, file) != n ||
			fread(model->v_memory, sizeof(float), n, file) != n,
		state_path);
	bytes = fread(cursor, 1, sizeof(cursor), file);				       // tokend
	stop_if(tokend_seek(t, cursor, bytes, (uint64_t)rank, (uint64_t)world, B) < 0, // tokend
		tokend_why(t));							       // tokend
	fclose(file);
	return step;
}

/* The mean over all processes. */
static void average(float *values, size_t n)
{
	MPI_Allreduce(MPI_IN_PLACE, values, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	for (size_t i = 0; i < n; i++)
		values[i] /= (float)world;
}

int main(int argc, char **argv)
{
	int num_steps = argc > 1 ? atoi(argv[1]) : 15;
	struct tokend *train; // tokend
	GPT2 model;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &world);
	gpt2_build_from_checkpoint(&model, "gpt2_124M.bin");
	train = attach(); // tokend
	for (int step = load_state(&model, train); step < num_steps;) {
		if (!next_batch(train)) // tokend: the end
			break;
		gpt2_forward(&model, inputs, targets, B, T);
		gpt2_zero_grad(&model);
		gpt2_backward(&model);
		average(model.grads_memory, model.num_parameters);
		gpt2_update(&model, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.0f, ++step);
		if (rank == 0)
			printf("step %d: train loss %f\n", step, model.mean_loss);
		if (rank == 0 && step % 5 == 0)
			save_state(step, &model, train);
	}
	tokend_detach(train);
	gpt2_free(&model);
	MPI_Finalize();
	return 0;
}
