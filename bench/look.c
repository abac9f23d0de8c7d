/*
 * bench-look BYTES PATH…: the cost of the look at an open shard, with which the daemon finds that
 * it was written to. Each is after a read of BYTES from the page cache, at a random place of a
 * random shard. Prints one line of JSON: the median in nanoseconds, clock included.
 */
#include "daemon/reader/look.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS = 100000, SHARDS_MOST = 4096 };

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void give_up(const char *what)
{
	perror(what);
	exit(1);
}

static void open_shard(struct look *look, const char *path)
{
	struct statx found;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) < 0)
		give_up(path);
	look_begin(look, fd, "", &found);
}

static double read_and_look(struct look *look, char *to, size_t bytes, uint64_t random)
{
	struct look_state now;
	struct fault fault;
	double from;

	if (look->was.bytes < bytes ||
		pread(look->fd, to, bytes, (off_t)(random % (look->was.bytes - bytes + 1))) !=
			(ssize_t)bytes)
		give_up("bench-look: read");
	from = now_ns();
	if (look_again(look, &now, &fault) != LOOK_SAME)
		give_up("bench-look: look");
	return now_ns() - from;
}

int main(int argc, char **argv)
{
	static struct look look[SHARDS_MOST];
	static double cost[LOOKS];
	size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
	int shards = argc - 2;
	uint64_t random = 1;
	char *to = malloc(bytes);

	if (shards < 1 || shards > SHARDS_MOST || bytes < 1 || !to) {
		fprintf(stderr, "usage: bench-look BYTES PATH…\n");
		return 2;
	}
	for (int s = 0; s < shards; s++)
		open_shard(&look[s], argv[2 + s]);
	for (int i = 0; i < LOOKS; i++) {
		random = random * 6364136223846793005 + 1442695040888963407;
		cost[i] = read_and_look(
			&look[(random >> 33) % (unsigned)shards], to, bytes, random >> 20);
	}
	qsort(cost, LOOKS, sizeof(cost[0]), by_value);
	printf("{\"look_ns\": %.0f}\n", cost[LOOKS / 2]);
	free(to);
	return 0;
}
