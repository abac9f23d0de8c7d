/*
 * A libFuzzer target: the input becomes a manifest. If it is accepted, its paths are sorted and
 * below its root, and its facts are consistent; otherwise the error is one line.
 *
 * An input is: failures (fail.h), a byte (1: only npy is allowed), the text.
 */
#include "daemon/catalog/catalog.h"
#include "tests/fuzz/input.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check_name(const char *name)
{
	char whole[8192];

	snprintf(whole, sizeof(whole), "/%s/", name);
	assert(name[0] && !strstr(whole, "//") && !strstr(whole, "/./") && !strstr(whole, "/../"));
}

static void check(const struct dataset *m)
{
	assert(m->list.count > 0 && m->format && (m->token_bytes == 2 || m->token_bytes == 4));
	for (uint64_t i = 0; i < m->list.count; i++) {
		const char *name = shard_list_name(&m->list, i);

		check_name(name);
		assert(i == 0 || strcmp(shard_list_name(&m->list, i - 1), name) < 0);
		assert(shard_list_find(&m->list, name) == (int64_t)i);
		assert((m->table.tokens[i] | m->entry[i].bytes) >> 60 == 0);
		assert(m->sample_tokens == 0 || m->table.tokens[i] % m->sample_tokens == 0);
		assert(shard_type_name((enum shard_type)m->entry[i].type));
	}
	assert(m->frame_bytes <= 1 << 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t plan[FAIL_BYTES] = {input_byte(&in), input_byte(&in)};
	struct config_dataset config = {.format = input_byte(&in) == 1 ? "npy" : "auto"};
	int fd = memfd_create("manifest", MFD_CLOEXEC);
	char path[64];
	struct fault fault = {0};
	struct dataset m = {.config = &config,
		.hint = {.type = SHARD_U16, .window_tokens = 5, .budget_bytes = 1 << 20}};

	assert(fd >= 0 && pwrite(fd, in.at, in.n, 0) == (ssize_t)in.n);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fail_plan(plan);
	bool done = manifest_read(&m, path, "/data/web/", NULL, NULL, &fault);

	fail_end();
	if (done) {
		check(&m);
	} else {
		assert(strncmp(fault.text, path, strlen(path)) == 0);
		assert(strlen(fault.text) > strlen(path) + 2);
		check_fault(&fault);
	}
	dataset_close(&m);
	close(fd);
	return 0;
}
