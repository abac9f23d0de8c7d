/*
 * Stands in for llm.c's train_gpt2.c: its names, for a model that only counts tokens. Writes
 * traced.py's events to $TRACE/PID.jsonl, and, linked with -Wl,--wrap=tokend_attach, the library's
 * records to $TRACE_RECORDS/STREAM.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tokend.h>
#include <unistd.h>

#define VOCAB 2048

typedef struct {
	size_t num_parameters;
	float *params_memory, *grads_memory, *m_memory, *v_memory; /* [VOCAB], one a token */
	const int *inputs, *targets;				   /* [B][T] of the last forward */
	size_t batch_size, seq_len;
	float mean_loss;
} GPT2;

static FILE *events;
static int steps;

/* ---- events ---- */

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(events, format, arguments);
	va_end(arguments);
}

static void fail_if(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "train_gpt2: %s\n", what);
		exit(1);
	}
}

int __real_tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes);
int __wrap_tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes);
int __wrap_tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes)
{
	int r = __real_tokend_attach(out, options, why, why_bytes), length;
	char path[4096];

	if (r < 0)
		return r;
	if (!events) {
		snprintf(path, sizeof(path), "%s/%d.jsonl", getenv("TRACE"), (int)getpid());
		events = fopen(path, "a");
		fail_if(!events, path);
		setvbuf(events, NULL, _IOLBF, 1 << 16); /* a line at a time */
		note("{\"rank\": %d}\n", (int)options->rank);
	}
	length = snprintf(path, sizeof(path), "%s/%s", getenv("TRACE_RECORDS"), options->stream);
	mkdir(path, 0777);
	snprintf(path + length, sizeof(path) - (size_t)length, "/%d.record", (int)getpid());
	fail_if(tokend_record(*out, path) < 0, "tokend_record()");
	note("{\"loader\": \"%s\"}\n", options->stream);
	return 0;
}

/* Waits until it is killed or released, if the process is to be held after so many steps. */
static void hold(void)
{
	const char *holds = getenv("TRACE_HOLD");
	char path[4096];

	if (!holds || !holds[0] || atoi(holds) != steps)
		return;
	note("{\"held\": %d}\n", steps);
	snprintf(path, sizeof(path), "%s/go-%d", getenv("TRACE"), steps);
	while (access(path, F_OK) != 0)
		usleep(20000);
}

/* ---- the model ---- */

static float *new_parameters(void)
{
	float *memory = calloc(VOCAB, sizeof(float));

	fail_if(!memory, "out of memory");
	return memory;
}

static void gpt2_build_from_checkpoint(GPT2 *model, const char *checkpoint_path)
{
	(void)checkpoint_path;
	*model = (GPT2){.num_parameters = VOCAB, .params_memory = new_parameters()};
}

/* log(Σ exp(parameter)) */
static float normaliser(const GPT2 *model)
{
	float sum = 0;

	for (int v = 0; v < VOCAB; v++)
		sum += expf(model->params_memory[v]);
	return logf(sum);
}

static void gpt2_forward(GPT2 *model, int *inputs, int *targets, size_t B, size_t T)
{
	float log_sum = normaliser(model), loss = 0;

	model->inputs = inputs;
	model->targets = targets;
	model->batch_size = B;
	model->seq_len = T;
	for (size_t i = 0; i < B * T; i++) {
		fail_if(inputs[i] < 0 || inputs[i] >= VOCAB, "an input is not a token");
		fail_if(targets[i] < 0 || targets[i] >= VOCAB, "a target is not a token");
		loss += log_sum - model->params_memory[targets[i]];
	}
	model->mean_loss = loss / (float)(B * T);
}

static void gpt2_zero_grad(GPT2 *model)
{
	if (model->grads_memory)
		memset(model->grads_memory, 0, VOCAB * sizeof(float));
}

/* Validation makes no backward pass, so its rows are not logged. */
static void gpt2_backward(GPT2 *model)
{
	size_t n = model->batch_size * model->seq_len;
	float log_sum = normaliser(model);

	note("{\"rows\": [");
	for (size_t i = 0; i < n; i++) {
		const char *before = i % model->seq_len ? ", " : i ? "], [" : "[";

		note("%s%d", before, model->inputs[i]);
	}
	note("]]}\n");
	hold();
	if (!model->grads_memory)
		model->grads_memory = new_parameters();
	for (int v = 0; v < VOCAB; v++)
		model->grads_memory[v] += expf(model->params_memory[v] - log_sum);
	for (size_t i = 0; i < n; i++)
		model->grads_memory[model->targets[i]] -= 1.0f / (float)n;
}

static void gpt2_update(GPT2 *model, float learning_rate, float beta1, float beta2, float eps,
	float weight_decay, int t)
{
	(void)beta2, (void)eps, (void)weight_decay;
	if (!model->m_memory) {
		model->m_memory = new_parameters();
		model->v_memory = new_parameters();
	}
	for (int v = 0; v < VOCAB; v++) {
		model->m_memory[v] = beta1 * model->m_memory[v] + model->grads_memory[v];
		model->params_memory[v] -= learning_rate * model->m_memory[v];
	}
	steps++;
	note("{\"step\": %d}\n", t);
}

static void gpt2_free(GPT2 *model)
{
	free(model->params_memory);
	free(model->grads_memory);
	free(model->m_memory);
	free(model->v_memory);
}
