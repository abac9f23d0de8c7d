/*
 * bench-shard TOKENS PATH…: the CPU time of finding a window of TOKENS tokens and reading it from
 * the page cache, for shards of any format. Prints one line of JSON: nanoseconds for each path,
 * medians of ROUNDS rounds in which the shards take turns.
 */
#include "daemon/shard/shard.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 301, WINDOWS = 512, AHEAD = 32, SHARDS_MOST = 16 };

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct shard *open_shard(const char *path)
{
	const struct shard_hint hint = {.type = SHARD_U16};
	const struct shard_format *format;
	struct shard_facts facts;
	struct shard *shard = NULL;
	struct fault fault = {.text = "cannot be opened"};
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	format = fd < 0 ? NULL : shard_describe(NULL, path, fd, &hint, &facts, &fault);
	if (format)
		shard = shard_open(format, path, fd, &hint, &facts, &fault);
	if (shard)
		return shard;
	fprintf(stderr, "bench-shard: %s: %s\n", path, fault.text);
	exit(1);
}

/* Finds AHEAD random windows at once, as the daemon does: the memory accesses overlap. */
static void choose(
	const struct shard *shard, uint64_t window, uint64_t *random, struct shard_place *place)
{
	uint64_t windows = shard->facts.tokens / window;

	for (int i = 0; i < AHEAD; i++) {
		place[i] = shard_find(shard, (*random >> 33) % windows * window);
		*random = *random * 6364136223846793005 + 1442695040888963407;
	}
}

/* Nanoseconds a window, over WINDOWS random ones. */
static double read_some(const struct shard *shard, uint64_t window, char *to, uint64_t *random)
{
	struct shard_place place[AHEAD];
	struct fault fault;
	double from = now_ns();

	for (int i = 0; i < WINDOWS; i++) {
		if (i % AHEAD == 0)
			choose(shard, window, random, place);
		if (shard_try(shard, place[i % AHEAD], window, to) ||
			shard_read(shard, place[i % AHEAD].token, window, to, &fault))
			continue;
		fprintf(stderr, "bench-shard: %s\n", fault.text);
		exit(1);
	}
	return (now_ns() - from) / WINDOWS;
}

int main(int argc, char **argv)
{
	static double cost[SHARDS_MOST][ROUNDS];
	struct shard *shard[SHARDS_MOST];
	uint64_t window = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
	int shards = argc - 2;
	char *to = malloc(4 * window);

	if (shards < 1 || shards > SHARDS_MOST || window < 1 || !to) {
		fprintf(stderr, "usage: bench-shard TOKENS PATH…\n");
		return 2;
	}
	for (int s = 0; s < shards; s++) {
		shard[s] = open_shard(argv[2 + s]);
		if (shard[s]->facts.tokens < window) {
			fprintf(stderr, "bench-shard: %s: has fewer tokens than a window\n",
				argv[2 + s]);
			return 1;
		}
	}
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t begin = (uint64_t)round;

		for (int s = 0; s < shards; s++) {
			uint64_t random = begin * 0x9e3779b97f4a7c15;

			cost[s][round] = read_some(shard[s], window, to, &random);
		}
	}
	for (int s = 0; s < shards; s++) {
		qsort(cost[s], ROUNDS, sizeof(cost[s][0]), by_value);
		printf("%s\"%s\": %.1f", s ? ", " : "{", argv[2 + s], cost[s][ROUNDS / 2]);
		shard_close(shard[s]);
	}
	puts("}");
	free(to);
	return 0;
}
