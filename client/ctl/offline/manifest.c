/*
 * The manifest is written to a file next to its path, then renamed.
 */
#include "client/ctl/offline/manifest.h"

#include "client/ctl/common/error.h"
#include "client/ctl/common/out.h"
#include "proto/phrases.h"

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
	char last[PATH_MAX]; /* name */
};

struct ctl_manifest *ctl_manifest_begin(const char *path)
{
	struct ctl_manifest *m = calloc(1, sizeof(*m));

	if (!m) {
		ctl_fail(PHRASE_MEMORY);
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

static void put_some(FILE *file, const char *key, uint64_t value)
{
	if (value > 0)
		fprintf(file, ",\"%s\":%" PRIu64, key, value);
}

bool ctl_manifest_add(struct ctl_manifest *m, const char *name, const char *format,
	const struct shard_facts *facts, uint64_t size, uint64_t digest, struct fault *fault)
{
	struct ctl_out out = {0};
	int order = strcmp(m->last, name);

	if (order >= 0)
		return fault_set(fault, FAULT_ARGUMENT, "path",
			order == 0 ? "is named twice"
				   : "is out of order: it sorts before the shard listed before it");
	snprintf(m->last, sizeof(m->last), "%s", name);
	ctl_put_string(&out, name);
	out.buffer[out.n] = 0;
	if (strstr(out.buffer, "\\udc")) /* a byte that is not UTF-8 */
		return fault_set(fault, FAULT_ARGUMENT, "path",
			"its name is not UTF-8, so a manifest cannot list it; rename it");
	fprintf(m->file,
		"{\"path\":%s,\"format\":\"%s\",\"dtype\":\"%s\",\"tokens\":%" PRIu64
		",\"size\":%" PRIu64 ",\"digest\":\"%016" PRIx64 "\"",
		out.buffer, format, shard_type_name(facts->type), facts->tokens, size, digest);
	put_some(m->file, "sample_tokens", facts->row_tokens ? 0 : facts->sample_tokens);
	put_some(m->file, "row_tokens", facts->row_tokens);
	put_some(m->file, "frame_bytes", facts->frame_bytes);
	fputs("}\n", m->file);
	return true;
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
