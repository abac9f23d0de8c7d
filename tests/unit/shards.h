/* Shards in a row to write and to read: flat, NumPy, llm.c, datatrove. */
#ifndef TESTS_SHARDS_H
#define TESTS_SHARDS_H

#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "tests/unit/files.h"
#include <endian.h>
#include <errno.h>
#include <inttypes.h>

/* The file opened: with @format, or recognised. */
static inline struct shard *open_shard(
	const char *path, const char *format, const struct shard_hint *hint, int *fd)
{
	const struct shard_format *f = format ? shard_format(format) : NULL;
	struct shard_facts facts;
	struct fault fault;

	*fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(*fd >= 0);
	f = shard_describe(f, path, *fd, hint, &facts, &fault);
	if (!f)
		fail_msg("%s: %s", path, fault.text);
	struct shard *shard = shard_open(f, path, *fd, hint, &facts, &fault);

	if (!shard)
		fail_msg("%s: %s", path, fault.text);
	assert_int_equal(shard->facts.tokens, facts.tokens);
	return shard;
}

static inline uint64_t token_at(const struct shard *shard, const void *tokens, uint64_t i)
{
	return shard->facts.token_bytes == 2 ? ((const uint16_t *)tokens)[i]
					     : ((const uint32_t *)tokens)[i];
}

/* Bytes that were just read are in memory, so shard_try() returns the same. */
static inline void assert_tries(
	const struct shard *shard, uint64_t from, uint64_t n, const void *expected)
{
	uint32_t tokens[1024];

	if (n == 0 || !files_try(shard->bytes->fd))
		return;
	assert_true(shard_try(shard, shard_find(shard, from), n, tokens));
	assert_memory_equal(tokens, expected, n * shard->facts.token_bytes);
}

/* Tokens are @expected, whatever window they are read by; nothing is read beyond them. */
static inline void assert_tokens(
	const struct shard *shard, const uint64_t *expected, uint64_t count)
{
	struct fault fault;
	uint32_t tokens[1024];

	assert_int_equal(shard->facts.tokens, count);
	assert_true(count <= COUNT(tokens));
	for (uint64_t from = 0; from <= count; from++)
		for (uint64_t n = 0; from + n <= count; n += 1 + n / 3) {
			memset(tokens, 0xaa, sizeof(tokens));
			if (!shard_read(shard, from, n, tokens, &fault))
				fail_msg("%s", fault.text);
			assert_tries(shard, from, n, tokens);
			for (uint64_t i = 0; i < n; i++)
				assert_int_equal(token_at(shard, tokens, i), expected[from + i]);
			assert_int_equal(token_at(shard, tokens, n),
				shard->facts.token_bytes == 2 ? 0xaaaa : 0xaaaaaaaa);
		}
	assert_false(shard_read(shard, 0, count + 1, tokens, &fault));
	assert_int_equal(fault.code, FAULT_ARGUMENT);
	assert_false(shard_read(shard, count, UINT64_MAX, tokens, &fault));
	assert_int_equal(fault.code, FAULT_ARGUMENT);
	assert_false(shard_read(shard, UINT64_MAX, 1, tokens, &fault));
	assert_int_equal(fault.code, FAULT_ARGUMENT);
}

static const uint64_t few[] = {0, 1, 2, 127, 3, 50, 99, 127, 4};

/* .npy with @header as its text, padded as NumPy does, and the tokens in @bytes each. */
static inline void put_npy(struct piece *p, int version, const char *header, const uint64_t *tokens,
	size_t count, size_t bytes)
{
	size_t length = strlen(header) + 1, prefix = version == 1 ? 10 : 12,
	       padding = 63 - (prefix + length + 63) % 64;

	p->n = 0;
	piece_text(p, "\x93NUMPY");
	piece_number(p, (uint64_t)version, 2);
	piece_number(p, length + padding, version == 1 ? 2 : 4);
	piece_text(p, header);
	while (padding-- > 0)
		piece_text(p, " ");
	piece_text(p, "\n");
	for (size_t i = 0; i < count; i++)
		piece_number(p, tokens[i], bytes);
}

static inline void put_llmc(struct piece *p, uint64_t magic, uint64_t version, uint64_t count,
	size_t stored, size_t bytes)
{
	p->n = 0;
	piece_number(p, magic, 4);
	piece_number(p, version, 4);
	piece_number(p, count, 4);
	while (p->n < 1024)
		piece_number(p, 0, 4);
	for (size_t i = 0; i < stored; i++)
		piece_number(p, few[i], bytes);
}

/* NULL: no such file. @ends has the ends of documents, terminated by UINT64_MAX. */
static inline const char *put_ds(
	struct files *f, size_t bytes, const uint64_t *ends, const char *metadata)
{
	struct piece p = {.n = 0};

	unlink(files_path(f, "a.ds.index"));
	unlink(files_path(f, "a.ds.metadata"));
	for (; ends && *ends != UINT64_MAX; ends++)
		piece_number(&p, *ends, 8);
	if (ends)
		files_put(f, "a.ds.index", p.at, p.n);
	if (metadata)
		files_put(f, "a.ds.metadata", metadata, strlen(metadata));
	p.n = 0;
	for (size_t i = 0; i < COUNT(few); i++)
		piece_number(&p, few[i], bytes);
	return files_put(f, "a.ds", p.at, p.n);
}

#define ENDS(...) ((const uint64_t[]){__VA_ARGS__, UINT64_MAX})

#endif
