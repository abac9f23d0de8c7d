/*
 * The loop of llm.c's train_gpt2.c on several processes. Started again, on any number of processes,
 * it resumes. In llm.c's directory, with llmc_dataloader.h:
 *
 *   mpicc train_llmc.c $(pkg-config --cflags --libs tokend) -lm -o train_llmc
 *   mpirun -n 2 ./train_llmc [STEPS [RUN [CONFIG]]]
 *
 * If tokend was installed with pip: export PKG_CONFIG_PATH=$(python -m tokend --pkgconfigdir)
 */
#include "llmc_dataloader.h" // tokend: in place of llmc/dataloader.h, whose include guard it has

#define TESTING // without main()
#include "train_gpt2.c"

#include <unistd.h>

static const char *const state_path = "state.bin", *const new_path = "state.bin.new";

static void stop_if(int failed, const char *what)
{
	if (failed) {
		perror(what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* Step, weights, moments and cursor in one file, which is replaced as a whole. */
static void save_state(int step, const GPT2 *model, const DataLoader *loader)
{
	static char cursor[TOKEND_CURSOR_BYTES];			       // tokend
	int64_t bytes = tokend_cursor(loader->tokend, cursor, sizeof(cursor)); // tokend
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
static int load_state(GPT2 *model, DataLoader *loader)
{
	static char cursor[TOKEND_CURSOR_BYTES]; // tokend
	size_t n = model->num_parameters;
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
	dataloader_resume(loader, cursor, fread(cursor, 1, sizeof(cursor), file)); // tokend
	fclose(file);
	return step;
}

/* The mean over all processes. */
static void average(float *values, size_t n, int num_processes)
{
	MPI_Allreduce(MPI_IN_PLACE, values, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	for (size_t i = 0; i < n; i++)
		values[i] /= (float)num_processes;
}

static float validate(GPT2 *model, DataLoader *val_loader, int val_num_batches)
{
	float val_loss = 0;
	int n = 0; // tokend

	dataloader_reset(val_loader);
	for (; n < val_num_batches && dataloader_next_batch(val_loader); n++) { // tokend
		gpt2_forward(model, val_loader->inputs, val_loader->targets, val_loader->B,
			val_loader->T);
		val_loss += model->mean_loss;
	}
	average(&val_loss, 1, val_loader->num_processes);
	return val_loss / (float)n; // tokend
}

int main(int argc, char **argv)
{
	int num_steps = argc > 1 ? atoi(argv[1]) : 15;
	const char *run = argc > 2 ? argv[2] : "llmc";	       // tokend
	const char *file = argc > 3 ? argv[3] : "tokend.yaml"; // tokend
	int B = 2, T = 32, rank, world;
	DataLoader train_loader, val_loader;
	GPT2 model;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &world);
	gpt2_build_from_checkpoint(&model, "gpt2_124M.bin");
	dataloader_init(&train_loader, file, "train", run, B, T, rank, world); // tokend
	dataloader_init(&val_loader, file, "valid", run, B, T, rank, world);   // tokend
	for (int step = load_state(&model, &train_loader); step < num_steps;) {
		if (step % 10 == 0) {
			float val_loss = validate(&model, &val_loader, 5);

			if (rank == 0)
				printf("val loss %f\n", val_loss);
		}
		if (!dataloader_next_batch(&train_loader)) // tokend: the end
			break;
		gpt2_forward(&model, train_loader.inputs, train_loader.targets, train_loader.B,
			train_loader.T);
		gpt2_zero_grad(&model);
		gpt2_backward(&model);
		average(model.grads_memory, model.num_parameters, world);
		gpt2_update(&model, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.0f, ++step);
		if (rank == 0)
			printf("step %d: train loss %f\n", step, model.mean_loss);
		if (rank == 0 && step % 5 == 0)
			save_state(step, &model, &train_loader);
	}
	dataloader_free(&train_loader);
	dataloader_free(&val_loader);
	gpt2_free(&model);
	MPI_Finalize();
	return 0;
}
