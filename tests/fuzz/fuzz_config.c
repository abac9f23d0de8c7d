/*
 * A libFuzzer target: the input becomes a config file. If it is accepted, its values are in their
 * ranges; otherwise the error is one line that begins with the file.
 *
 * An input is: failures (fail.h), the text.
 */
#include "daemon/config/config.h"
#include "proto/wire.h"
#include "tests/fuzz/check_fault.h"
#include "tests/fuzz/count.h"
#include "tests/fuzz/input.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_dataset(const struct config_stream *s, const struct config_dataset *d)
{
	assert(wire_label_ok(d->name) && d->path && d->path[0] && d->format);
	assert(d->token_bytes == 2 || d->token_bytes == 4);
	assert(isfinite(d->weight) && d->weight >= 0);
	assert(d->block >= 1 && d->group >= 1 && d->shuffle <= ORDER_BLOCK);
	assert(s->epochs == 0 || d->max_epochs == 0);
	for (const struct config_dataset *other = s->dataset; other < d; other++)
		assert(strcmp(other->name, d->name) != 0);
}

static void check_stream(const struct config *c, const struct config_stream *s)
{
	assert(wire_name_ok(s->name) && config_stream(c, s->name) == s);
	assert(s->seq_len >= 1 && s->seq_len <= LIMIT_CHUNK_BYTES && s->stride >= 1);
	assert(s->extra <= LIMIT_CHUNK_BYTES - s->seq_len);
	assert(s->epochs == 0 || s->samples == 0);
	assert(s->datasets >= 1 && s->datasets <= LIMIT_DATASETS);
	for (uint32_t d = 0; d < s->datasets; d++)
		check_dataset(s, &s->dataset[d]);
	for (uint32_t i = 0; i < s->steps; i++) {
		const struct config_step *step = &s->step[i];

		assert(step->from % LIMIT_BLOCK == 0 && step->to % LIMIT_BLOCK == 0);
		assert(step->from <= step->to && step->steps >= 1 && step->to > 0);
		assert(i == 0 || step[-1].to <= step->from);
		for (uint32_t d = 0; d < s->datasets; d++)
			assert(isfinite(step->weights[d]) && step->weights[d] >= 0);
	}
}

static void check_paths(const struct config *c)
{
	char path[PATH_MAX], *own;

	assert(c->socket[0] == '/' && strlen(c->socket) < WIRE_SOCKET_BYTES);
	assert(c->state_dir[0] == '/' && c->directory[0] == '/');
	if (config_path(c, c->stream[0].dataset[0].path, path, sizeof(path)))
		assert(path[0] == '/');
	assert(!config_path(c, c->stream[0].dataset[0].path, path, 1));
	config_may_write(c->state_dir);
	own = config_user_state_dir(c);
	assert(!own || own[0] == '/');
	free(own);
}

static void check(const struct config *c)
{
	assert(c->streams >= 1 && c->streams <= LIMIT_STREAMS);
	assert(c->memory_bytes >= 1 && c->memory_bytes <= INT64_MAX);
	assert(c->io <= CONFIG_IO_PREAD);
	for (uint32_t i = 0; i < c->streams; i++)
		check_stream(c, &c->stream[i]);
	assert(!config_stream(c, "/"));
	check_paths(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)};
	int fd = memfd_create("config", MFD_CLOEXEC);
	struct fault fault = {0};
	struct config *config;
	char path[64];

	assert(fd >= 0);
	if (in.n > 0 && pwrite(fd, in.at, in.n, 0) != (ssize_t)in.n)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fail_plan(plan);
	config = config_load(path, &fault);
	if (config) {
		check(config);
	} else {
		check_fault(&fault);
		assert(strncmp(fault.text, path, strlen(path)) == 0);
		assert(strlen(fault.text) > strlen(path) + 2);
		if (!fail_happened())
			count(41);
	}
	fail_end();
	config_free(config);
	close(fd);
	return 0;
}
