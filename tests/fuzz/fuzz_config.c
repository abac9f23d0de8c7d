/*
 * A libFuzzer target: the input becomes a config file. If it is accepted, its values are in their
 * ranges; otherwise the error is one line that begins with the file. If it names only the shards
 * that exist here, its streams are opened: they get a cursor, or the error is such a line, too.
 *
 * An input is: failures (fail.h), the text.
 */
#include "daemon/catalog/catalog.h"
#include "daemon/config/config.h"
#include "proto/wire.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/scratch.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char path[64];
static const char *const shards[] = {"web", "code", "a.bin"}; /* flat files */

static void check_stream(const struct config *c, const struct config_stream *s)
{
	assert(wire_name_ok(s->name) && config_stream(c, s->name) == s);
	assert(s->seq_len >= 1 && s->seq_len <= LIMIT_CHUNK_BYTES && s->stride >= 1);
	assert(s->datasets >= 1 && s->datasets <= LIMIT_DATASETS);
	for (uint32_t i = 0; i < s->datasets; i++) {
		const struct config_dataset *d = &s->dataset[i];

		assert(wire_label_ok(d->name) && d->path && d->path[0] && d->format);
		assert(isfinite(d->weight) && d->weight >= 0);
		assert(d->block >= 1 && d->group >= 1 && d->shuffle <= ORDER_BLOCK);
	}
}

static void check(const struct config *c)
{
	assert(c->streams >= 1 && c->streams <= LIMIT_STREAMS);
	assert(c->memory_bytes >= 1 && c->memory_bytes <= INT64_MAX);
	for (uint32_t i = 0; i < c->streams; i++)
		check_stream(c, &c->stream[i]);
	assert(c->socket[0] == '/' && strlen(c->socket) < WIRE_SOCKET_BYTES);
	assert(c->state_dir[0] == '/' && c->directory[0] == '/');
}

/* ---- opening its streams ---- */

static bool is_here(const struct config_dataset *d)
{
	for (size_t i = 0; i < sizeof(shards) / sizeof(shards[0]); i++)
		if (strcmp(strrchr(d->path, '/') + 1, shards[i]) == 0)
			return !d->manifest && !d->label_mask;
	return false;
}

/* Other paths may be large directories. */
static bool all_here(const struct config *c)
{
	for (uint32_t i = 0; i < c->streams; i++)
		for (uint32_t d = 0; d < c->stream[i].datasets; d++)
			if (!is_here(&c->stream[i].dataset[d]))
				return false;
	return true;
}

static void check_line(const struct fault *fault)
{
	check_fault(fault);
	assert(strncmp(fault->text, path, strlen(path)) == 0);
	assert(strlen(fault->text) > strlen(path) + 2);
}

static void open_streams(const struct config *c)
{
	struct fault fault = {0};
	struct catalog *catalog = catalog_open(c, NULL, NULL, NULL, &fault);

	if (!catalog)
		check_line(&fault);
	for (uint32_t i = 0; catalog && i < c->streams; i++)
		cursor_check(&catalog->stream[i].begin);
	catalog_free(catalog);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static uint16_t tokens[4000];

	(void)argc, (void)argv;
	scratch_open();
	for (size_t i = 0; i < 4000; i++)
		tokens[i] = (uint16_t)(i * 7919 % 50000);
	for (size_t i = 0; i < sizeof(shards) / sizeof(shards[0]); i++)
		scratch_put(shards[i], tokens, sizeof(tokens) >> i);
	snprintf(path, sizeof(path), "%s/t.yaml", scratch);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)};
	struct fault fault = {0};
	struct config *config;

	scratch_put("t.yaml", in.at, in.n);
	fail_plan(plan);
	config = config_load(path, &fault);
	if (config) {
		check(config);
		if (all_here(config))
			open_streams(config);
	} else {
		check_line(&fault);
	}
	fail_end();
	config_free(config);
	return 0;
}
