/*
 * Written beside its place, then renamed.
 */
#include "manifest.h"

#include "ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ctl_manifest {
	const char *path;
	char part[PATH_MAX];
	FILE *file;
};

struct ctl_manifest *ctl_manifest_begin(const char *path)
{
	struct ctl_manifest *m = calloc(1, sizeof(*m));

	if (!m) {
		ctl_fail("out of memory");
		return NULL;
	}
	int n = snprintf(m->part, sizeof(m->part), "%s.%ld", path, (long)getpid());

	m->path = path;
	errno = ENAMETOOLONG;
	m->file = n < 0 || (size_t)n >= sizeof(m->part) ? NULL : fopen(m->part, "wxe");
	if (m->file)
		return m;
	ctl_fail("%s: %s", path, strerror(errno));
	free(m);
	return NULL;
}

/* As JSON; what is no UTF-8 becomes \udcXX, as everywhere. */
static void put_string(FILE *file, const char *text)
{
	struct ctl_out out = {0};

	ctl_put_string(&out, text);
	fwrite(out.buffer, 1, out.n, file);
}

void ctl_manifest_add(struct ctl_manifest *m, const char *name, const char *format,
	const struct shard_facts *facts, uint64_t size, uint64_t digest)
{
	fputs("{\"path\":", m->file);
	put_string(m->file, name);
	fprintf(m->file,
		",\"format\":\"%s\",\"dtype\":\"%s\",\"tokens\":%" PRIu64 ",\"size\":%" PRIu64
		",\"digest\":\"%016" PRIx64 "\"}\n",
		format, shard_type_name(facts->type), facts->tokens, size, digest);
}

bool ctl_manifest_end(struct ctl_manifest *m, bool keep)
{
	bool fine = keep && fflush(m->file) == 0 && !ferror(m->file) && fsync(fileno(m->file)) == 0;
	int error = errno;

	fine = fclose(m->file) == 0 && fine;
	if (fine && rename(m->part, m->path) != 0) {
		fine = false;
		error = errno;
	}
	if (!fine)
		unlink(m->part);
	if (keep && !fine)
		ctl_fail("%s: %s", m->path, strerror(error));
	free(m);
	return fine || !keep;
}
