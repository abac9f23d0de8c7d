/*
 * bench-floor FILE SECONDS BYTES PIECES: what memcpy() of a batch costs one thread.
 *
 * Copies PIECES pieces of BYTES from random pages of a mapped file, which is in the page cache, to
 * one buffer, again and again. Prints one line of JSON: copies of the whole buffer per second, and
 * the CPU seconds of one.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { PAGE = 4096, BETWEEN_CLOCKS = 64 };

static double now_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

int main(int argc, char **argv)
{
	struct stat about;
	int fd = argc == 5 ? open(argv[1], O_RDONLY) : -1;
	size_t bytes = argc == 5 ? strtoull(argv[3], NULL, 10) : 0;
	size_t pieces = argc == 5 ? strtoull(argv[4], NULL, 10) : 0;
	uint64_t copies = 0, random = 88172645463325252;

	if (fd < 0 || fstat(fd, &about) < 0 || bytes == 0 || pieces == 0 ||
		(size_t)about.st_size < bytes) {
		fprintf(stderr, "usage: bench-floor FILE SECONDS BYTES PIECES\n");
		return 2;
	}

	size_t pages = ((size_t)about.st_size - bytes) / PAGE + 1;
	const char *file =
		mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	char *to = malloc(bytes * pieces);

	if (file == MAP_FAILED || !to) {
		perror("bench-floor");
		return 1;
	}
	memset(to, 0, bytes * pieces);

	double from = now_s(CLOCK_MONOTONIC), cpu = now_s(CLOCK_THREAD_CPUTIME_ID);
	double until = from + atof(argv[2]), now;

	do {
		for (int i = 0; i < BETWEEN_CLOCKS; i++, copies++) {
			for (size_t p = 0; p < pieces; p++)
				memcpy(to + p * bytes, file + next_random(&random) % pages * PAGE,
					bytes);
			__asm__ volatile("" : : "r"(to) : "memory"); /* the copy is used */
		}
		now = now_s(CLOCK_MONOTONIC);
	} while (now < until);
	cpu = now_s(CLOCK_THREAD_CPUTIME_ID) - cpu;
	printf("{\"copies_s\": %.1f, \"cpu_s\": %.3e}\n", (double)copies / (now - from),
		cpu / (double)copies);
	return 0;
}
