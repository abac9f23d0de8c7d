#include "client/lib/program.h"

#include "client/lib/tokend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Where the programs are, seen from the file that contains this code: a program of tokend; the
 * library, below PREFIX/lib or in a build, or the package of pip --target; the package in a build,
 * or the library below PREFIX/lib/ARCH; the package in PREFIX/lib/tokend/python/tokend, or where
 * pip installs it, in PREFIX/lib/pythonX.Y/site-packages/tokend; the library there, in its lib.
 */
static const char *const places[] = {
	".", "../bin", "../../bin", "../../../../bin", "../../../../../bin"};

/* Writes @directory/@name if that is a program. */
static bool is_in(const char *directory, const char *name, char *path, size_t bytes)
{
	char whole[PATH_MAX];
	struct stat st;

	if (!realpath(directory, whole))
		return false;
	int n = snprintf(path, bytes, "%s/%s", whole, name);

	return n > 0 && (size_t)n < bytes && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	       access(path, X_OK) == 0;
}

/* The directory of the file that contains this code. */
static bool find_own(char directory[PATH_MAX])
{
	Dl_info info;
	const char *file = dladdr(places, &info) ? info.dli_fname : NULL;
	char self[PATH_MAX];

	/* A program that was found in $PATH. */
	if (!file || !strchr(file, '/')) {
		ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

		if (n <= 0)
			return false;
		self[n] = 0;
		file = self;
	}
	size_t n = (size_t)(strrchr(file, '/') - file);

	if (n >= PATH_MAX)
		return false;
	memcpy(directory, file, n);
	directory[n] = 0;
	return true;
}

static bool is_near(const char *name, char *path, size_t bytes)
{
	char own[PATH_MAX], place[PATH_MAX + 32];

	if (!find_own(own))
		return false;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(place, sizeof(place), "%s/%s", own, places[i]);
		if (is_in(place, name, path, bytes))
			return true;
	}
	return false;
}

static bool is_on_path(const char *name, char *path, size_t bytes)
{
	const char *list = getenv("PATH");
	char directory[PATH_MAX];

	while (list && *list) {
		size_t n = strcspn(list, ":");

		if (n > 0 && n < sizeof(directory)) {
			memcpy(directory, list, n);
			directory[n] = 0;
			if (is_in(directory, name, path, bytes))
				return true;
		}
		list += n + (list[n] == ':');
	}
	return false;
}

bool program_find(const char *name, char *path, size_t bytes)
{
	const char *named = getenv("TOKEND_BIN");

	return (named && named[0] && is_in(named, name, path, bytes)) ||
	       is_near(name, path, bytes) || is_on_path(name, path, bytes);
}

int tokend_program(const char *name, char *path, size_t capacity)
{
	return program_find(name, path, capacity) ? 0 : TOKEND_EARGUMENT;
}
