/*
 * A libFuzzer target: the input becomes a manifest. If it is accepted, its paths are sorted and
 * below its root, and its facts are consistent; otherwise the error is one line.
 */
#include "daemon/catalog/manifest.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_name(const char *name)
{
	char whole[8192];

	snprintf(whole, sizeof(whole), "/%s/", name);
	assert(name[0] && !strstr(whole, "//") && !strstr(whole, "/./") && !strstr(whole, "/../"));
}

static void check(const struct manifest *m)
{
	assert(m->list.count > 0 && m->format && (m->token_bytes == 2 || m->token_bytes == 4));
	for (uint64_t i = 0; i < m->list.count; i++) {
		const char *name = shard_list_name(&m->list, i);

		check_name(name);
		assert(i == 0 || strcmp(shard_list_name(&m->list, i - 1), name) < 0);
		assert(shard_list_find(&m->list, name) == (int64_t)i);
		assert(m->tokens[i] <= UINT64_C(1) << 60 && m->sizes[i] <= UINT64_C(1) << 60);
		assert(m->sample_tokens == 0 || m->tokens[i] % m->sample_tokens == 0);
		assert(shard_type_name((enum shard_type)m->types[i]));
	}
	assert(m->frame_bytes <= 1 << 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct shard_hint hint = {
		.type = SHARD_U16, .window_tokens = 5, .budget_bytes = 1 << 20};
	int fd = memfd_create("manifest", MFD_CLOEXEC);
	char path[64];
	const char *why;
	struct fault fault;
	struct manifest m;

	assert(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (manifest_read(&m, path, "/data/web/", NULL, &hint, &fault)) {
		check(&m);
	} else {
		why = fault.text;
		assert(strncmp(why, path, strlen(path)) == 0 && strlen(why) > strlen(path) + 2);
		for (const char *c = why; *c; c++)
			assert(*c >= ' ' && *c <= '~');
		assert(!m.list.paths && !m.tokens && !m.types);
	}
	manifest_free(&m);
	close(fd);
	return 0;
}
