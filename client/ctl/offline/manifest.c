/*
 * The manifest is written to a file next to its path, then renamed.
 */
#include "client/ctl/offline/manifest.h"

#include "client/ctl/common/error.h"
#include "client/ctl/common/file.h"
#include "client/ctl/common/out.h"
#include "client/ctl/offline/sums.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct ctl_manifest {
	struct ctl_file file;
	char last[PATH_MAX];   /* name */
	struct ctl_sums *sums; /* or NULL */
};

struct ctl_manifest *ctl_manifest_begin(const char *path, uint32_t sums_piece)
{
	struct ctl_manifest *m = calloc(1, sizeof(*m));

	if (!m) {
		ctl_fail(PHRASE_MEMORY);
		return NULL;
	}
	if (!ctl_file_begin(&m->file, path)) {
		free(m);
		return NULL;
	}
	if (sums_piece > 0)
		m->sums = ctl_sums_begin(path, sums_piece);
	if (sums_piece == 0 || m->sums)
		return m;
	ctl_manifest_end(m, false);
	return NULL;
}

static void put_some(FILE *file, const char *key, uint64_t value)
{
	if (value > 0)
		fprintf(file, ",\"%s\":%" PRIu64, key, value);
}

/* Must the name sort after the last one, and be UTF-8? Its JSON text goes to @out. */
static bool take_name(
	struct ctl_manifest *m, const char *name, struct ctl_out *out, struct fault *fault)
{
	int order = strcmp(m->last, name);

	if (order >= 0)
		return fault_set(fault, FAULT_ARGUMENT, "path",
			order == 0 ? "is named twice"
				   : "is out of order: it sorts before the shard listed before it");
	snprintf(m->last, sizeof(m->last), "%s", name);
	ctl_put_string(out, name);
	out->buffer[out->n] = 0;
	if (strstr(out->buffer, "\\udc")) /* a byte that is not UTF-8 */
		return fault_set(fault, FAULT_ARGUMENT, "path",
			"its name is not UTF-8, so a manifest cannot list it; rename it");
	return true;
}

static const char *parent_end(const char *path, const char *end)
{
	while (end > path && end[-1] != '/')
		end--;
	return end;
}

static bool is_file(const char *path, uint64_t *size)
{
	struct stat st;

	if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
		return false;
	*size = (uint64_t)st.st_size;
	return true;
}

/*
 * Finds the side file of kind @c of the shard @name, whose path is @path: next to it, or for a kind
 * that several shards share, also in a directory above it. Writes its name to @side.
 */
static bool find_side(const char *path, const char *name, const struct shard_companion *c,
	char side[PATH_MAX], uint64_t *size)
{
	const char *root = path + strlen(path) - strlen(name), *end = name + strlen(name);
	char file[2 * PATH_MAX];
	bool shared = c->shard[0] == '*';

	if (c->alone || c->unread ||
		(shared ? c->ending[0] != '/' || !bytes_ending(path, c->shard + 1)
			: !bytes_side_path(name, c->shard, c->ending, side, PATH_MAX)))
		return false;
	for (;;) {
		end = parent_end(name, end);
		if (shared)
			snprintf(side, PATH_MAX, "%.*s%s", (int)(end - name), name, c->ending + 1);
		snprintf(file, sizeof(file), "%.*s%s", (int)(root - path), path, side);
		if (is_file(file, size))
			return true;
		if (!shared || end == name)
			return false;
		end--;
	}
}

/* The member `side` of a file: what a store must have after the upload. */
static void put_side(FILE *out, const char *path, const char *name, const char *format)
{
	const struct shard_format *formats[] = {shard_format(format), &shard_flat};
	const char *before = ",\"side\":{", *after = "";
	unsigned n = formats[0] == formats[1] ? 1 : 2;
	char side[PATH_MAX];
	uint64_t size;

	for (unsigned i = 0; i < n && strlen(path) >= strlen(name); i++) {
		const struct shard_companion *c = formats[i]->companions;

		for (; c && c->ending; c++) {
			struct ctl_out text = {0};

			if (!find_side(path, name, c, side, &size))
				continue;
			ctl_put_string(&text, side);
			text.buffer[text.n] = 0;
			fprintf(out, "%s%s:[%" PRIu64 "]", before, text.buffer, size);
			before = ",";
			after = "}";
		}
	}
	fputs(after, out);
}

/* Writes the members that depend on where the shard is, and the end of the line. */
static bool end_line(
	struct ctl_manifest *m, const struct ctl_manifest_line *line, struct fault *fault)
{
	if (line->etag)
		fprintf(m->file.to, ",\"etag\":\"%s\"", line->etag);
	if (line->listing)
		ctl_listing_put_side(line->listing, line->shard, m->file.to);
	else if (line->path)
		put_side(m->file.to, line->path, line->name, line->format);
	fputs("}\n", m->file.to);
	return !m->sums ||
	       ctl_sums_add(m->sums, line->size, line->etag ? line->etag : "", line->sums, fault);
}

bool ctl_manifest_add(
	struct ctl_manifest *m, const struct ctl_manifest_line *line, struct fault *fault)
{
	const struct shard_facts *facts = line->facts;
	struct ctl_out out = {0};

	if (!take_name(m, line->name, &out, fault))
		return false;
	fprintf(m->file.to,
		"{\"path\":%s,\"format\":\"%s\",\"dtype\":\"%s\",\"tokens\":%" PRIu64
		",\"size\":%" PRIu64,
		out.buffer, line->format, shard_type_name(facts->type), facts->tokens, line->size);
	if (line->has_digest)
		fprintf(m->file.to, ",\"digest\":\"%016" PRIx64 "\"", line->digest);
	put_some(m->file.to, "sample_tokens", facts->row_tokens ? 0 : facts->sample_tokens);
	put_some(m->file.to, "row_tokens", facts->row_tokens);
	put_some(m->file.to, "frame_bytes", facts->frame_bytes);
	if (facts->plain)
		fprintf(m->file.to, ",\"data_at\":%" PRIu64, facts->data_at);
	return end_line(m, line, fault);
}

bool ctl_manifest_copy(struct ctl_manifest *m, json_t *from, const struct ctl_manifest_line *line,
	struct fault *fault)
{
	json_object_del(from, "etag");
	json_object_del(from, "side");

	char *text = json_dumps(from, JSON_COMPACT | JSON_PRESERVE_ORDER);

	if (!text)
		return fault_memory(fault);
	fprintf(m->file.to, "%.*s", (int)strlen(text) - 1, text);
	free(text);
	return end_line(m, line, fault);
}

bool ctl_manifest_end(struct ctl_manifest *m, bool keep)
{
	bool fine = ctl_file_end(&m->file, keep);
	/* The sums have a digest of the manifest, so others next to it are not taken for them. */
	bool good = (!m->sums || ctl_sums_end(m->sums, fine)) && (fine || !keep);

	free(m);
	return good;
}
