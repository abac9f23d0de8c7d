/*
 * In place of libFuzzer, for builds without it: runs a target on each file of a directory. An input
 * that takes 10 s ends the program; the last line printed names it.
 */
#include "tests/fuzz/mutate_pack.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LIMIT_S = 10 };

int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most)
{
	(void)data, (void)most;
	return size;
}

static void run(const char *path)
{
	FILE *file = fopen(path, "rb");
	long size = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
	uint8_t *data = size >= 0 ? malloc((size_t)size) : NULL; /* ASan sees reads after its end */

	if (!data || fseek(file, 0, SEEK_SET) != 0 ||
		fread(data, 1, (size_t)size, file) != (size_t)size) {
		perror(path);
		exit(2);
	}
	fclose(file);
	fprintf(stderr, "%s\n", path);
	alarm(LIMIT_S);
	LLVMFuzzerTestOneInput(data, (size_t)size);
	alarm(0);
	free(data);
}

int main(int argc, char **argv)
{
	DIR *directory = argc == 2 ? opendir(argv[1]) : NULL;
	const struct dirent *entry;

	if (!directory) {
		fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
		return 2;
	}
	if (LLVMFuzzerInitialize)
		LLVMFuzzerInitialize(&argc, &argv);
	while ((entry = readdir(directory))) {
		char path[4096];

		snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
		if (entry->d_name[0] != '.')
			run(path);
	}
	closedir(directory);
	return 0;
}
