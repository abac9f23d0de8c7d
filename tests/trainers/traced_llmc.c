/*
 * Linked with train_llmc.c by -Wl,--wrap=…: writes traced.py's events to $TRACE/PID.jsonl, and the
 * library's records to $TRACE_RECORDS/STREAM.
 */
#include "llmc_gpt2.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tokend.h>
#include <unistd.h>

int __real_tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes);
int __wrap_tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes);
void __real_gpt2_backward(GPT2 *model);
void __wrap_gpt2_backward(GPT2 *model);
void __real_gpt2_update(GPT2 *model, float learning_rate, float beta1, float beta2, float eps,
	float weight_decay, int t);
void __wrap_gpt2_update(GPT2 *model, float learning_rate, float beta1, float beta2, float eps,
	float weight_decay, int t);

static FILE *events;
static int steps;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(events, format, arguments);
	va_end(arguments);
}

static void fail(const char *what)
{
	fprintf(stderr, "traced_llmc: %s\n", what);
	exit(1);
}

static void begin(uint64_t rank)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%d.jsonl", getenv("TRACE"), (int)getpid());
	events = fopen(path, "a");
	if (!events)
		fail(path);
	setvbuf(events, NULL, _IOLBF, 1 << 16); /* a line at a time */
	note("{\"rank\": %d}\n", (int)rank);
}

int __wrap_tokend_attach(
	struct tokend **out, const struct tokend_options *options, char *why, size_t why_bytes)
{
	int r = __real_tokend_attach(out, options, why, why_bytes);
	char path[4096];

	if (r < 0)
		return r;
	if (!events)
		begin(options->rank);
	snprintf(path, sizeof(path), "%s/%s", getenv("TRACE_RECORDS"), options->stream);
	mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/%s/%d.record", getenv("TRACE_RECORDS"), options->stream,
		(int)getpid());
	if (tokend_record(*out, path) < 0)
		fail(tokend_why(*out));
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

/* Validation makes no backward pass, so its rows are not logged. */
void __wrap_gpt2_backward(GPT2 *model)
{
	const int *token = model->inputs;

	note("{\"rows\": [");
	for (size_t b = 0; b < model->batch_size; b++)
		for (size_t i = 0; i < model->seq_len; i++)
			note("%s%d%s",
				i   ? ", "
				: b ? ", ["
				    : "[",
				*token++, i + 1 < model->seq_len ? "" : "]");
	note("]}\n");
	hold();
	__real_gpt2_backward(model);
}

void __wrap_gpt2_update(GPT2 *model, float learning_rate, float beta1, float beta2, float eps,
	float weight_decay, int t)
{
	__real_gpt2_update(model, learning_rate, beta1, beta2, eps, weight_decay, t);
	steps++;
	note("{\"step\": %d}\n", t);
}
