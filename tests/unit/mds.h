/* MDS shards to write and to read. */
#ifndef TESTS_MDS_H
#define TESTS_MDS_H

#include "daemon/shard/cache.h"
#include "daemon/shard/frames.h"
#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "tests/unit/files.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <zstd.h>

/* ---- shards ---- */

#define CONFIG(names, encodings, sizes)                                                            \
	"{\"column_encodings\": [" encodings "], \"column_names\": [" names                        \
	"], \"column_sizes\": [" sizes "], \"compression\": null, \"format\": \"mds\", "           \
	"\"hashes\": [], \"size_limit\": 67108864, "                                               \
	"\"version\": 2}"

static const char usual_config[] = CONFIG("\"tokens\"", "\"ndarray:int32\"", "null");

/* A sample's bytes, from a literal with zeroes in it. */
#define SAMPLE(literal) literal, sizeof(literal) - 1

#define FOUR "\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0"

static const char usual_sample[] = "\22\0\0\0\4\4" FOUR;

enum { USUAL = sizeof(usual_sample) - 1 };

/* Three samples, the second of which may be another. */
static inline void put_shard(struct piece *p, const char *config, const char *sample,
	size_t sample_bytes, const char *second, size_t second_bytes)
{
	uint64_t at = 4 + 4 * 4 + strlen(config);

	p->n = 0;
	piece_number(p, 3, 4);
	piece_number(p, at, 4);
	piece_number(p, at += sample_bytes, 4);
	piece_number(p, at += second_bytes, 4);
	piece_number(p, at += sample_bytes, 4);
	piece_text(p, config);
	piece_bytes(p, sample, sample_bytes);
	piece_bytes(p, second, second_bytes);
	piece_bytes(p, sample, sample_bytes);
}

static inline void put_usual(struct piece *p)
{
	put_shard(p, usual_config, usual_sample, USUAL, usual_sample, USUAL);
}

/* Describes, opens and reads all of a file. Returns "" or the error. */
static inline const char *whole(
	const char *path, const struct shard_hint *hint, struct shard_facts *facts)
{
	static _Thread_local struct fault fault;
	struct shard *shard = NULL;
	uint32_t tokens[64];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct shard_format *format;

	assert_true(fd >= 0);
	fault.text[0] = 0;
	format = shard_describe(NULL, path, fd, hint, facts, &fault);
	if (format) {
		assert_string_equal(format->name, "mds");
		shard = shard_open(format, path, fd, hint, facts, &fault);
	}
	for (uint64_t i = 0; shard && !fault.text[0] && i < facts->tokens; i += 64)
		if (!shard_read(shard, i, facts->tokens - i < 64 ? facts->tokens - i : 64, tokens,
			    &fault))
			break;
	shard_close(shard);
	close(fd);
	return fault.text;
}

static inline void assert_line(const char *got, const char *wanted, const char *name, size_t i)
{
	if (strcmp(got, wanted) != 0)
		fail_msg("%s[%zu]:\n  is     %s\n  should %s", name, i, got, wanted);
}

#endif
