/* Lines of a manifest. */
#include "client/ctl/offline/shards.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* ---- side files: what a store must have after the upload ---- */

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

/* The side files of a file, with their sizes. */
static json_t *sides_of(const char *path, const char *name, const char *format)
{
	const struct shard_format *formats[] = {shard_format(format), &shard_flat};
	unsigned n = formats[0] == formats[1] ? 1 : 2;
	json_t *sides = json_object();
	char side[PATH_MAX];
	uint64_t size;

	for (unsigned i = 0; i < n && strlen(path) >= strlen(name); i++) {
		const struct shard_companion *c = formats[i]->companions;

		for (; c && c->ending; c++)
			if (find_side(path, name, c, side, &size))
				json_object_set_new(
					sides, side, json_pack("[I]", (json_int_t)size));
	}
	return sides;
}

/* ---- lines ---- */

/* Ends the line @o, which is freed, with the members that depend on where the shard is. */
static bool put_line(struct ctl_manifest *m, json_t *o, const struct ctl_manifest_line *line,
	struct fault *fault)
{
	json_t *sides = line->listing ? ctl_listing_sides(line->listing, line->shard)
			: line->path  ? sides_of(line->path, line->name, line->format)
				      : NULL;
	bool fine = true;

	if (line->etag)
		fine = json_object_set_new(o, "etag", json_string(line->etag)) == 0;
	if (json_object_size(sides) > 0)
		fine = json_object_set(o, "side", sides) == 0 && fine;
	fine = fine && json_dumpf(o, m->file.to, JSON_COMPACT | JSON_PRESERVE_ORDER) == 0;
	fputc('\n', m->file.to);
	json_decref(sides);
	json_decref(o);
	return fine || ferror(m->file.to) || fault_memory(fault);
}

static void add_number(json_t *o, const char *key, uint64_t value)
{
	if (value > 0)
		json_object_set_new(o, key, json_integer((json_int_t)value));
}

bool ctl_manifest_add(
	struct ctl_manifest *m, const struct ctl_manifest_line *line, struct fault *fault)
{
	const struct shard_facts *facts = line->facts;
	json_t *name = json_string(line->name);
	int order = strcmp(m->last, line->name);
	char digest[24];

	if (!name)
		return fault_set(fault, FAULT_ARGUMENT, "path",
			"its name is not UTF-8, so a manifest cannot list it; rename it");
	if (order >= 0) {
		json_decref(name);
		return fault_set(fault, FAULT_ARGUMENT, "path",
			order == 0 ? "is named twice"
				   : "is out of order: it sorts before the shard listed before it");
	}
	snprintf(m->last, sizeof(m->last), "%s", line->name);

	json_t *o = json_pack("{so,ss,ss,sI,sI}", "path", name, "format", line->format, "dtype",
		shard_type_name(facts->type), "tokens", (json_int_t)facts->tokens, "size",
		(json_int_t)line->size);

	if (!o)
		return fault_memory(fault);
	snprintf(digest, sizeof(digest), "%016" PRIx64, line->digest);
	if (line->has_digest)
		json_object_set_new(o, "digest", json_string(digest));
	add_number(o, "sample_tokens", facts->row_tokens ? 0 : facts->sample_tokens);
	add_number(o, "row_tokens", facts->row_tokens);
	add_number(o, "frame_bytes", facts->frame_bytes);
	if (facts->plain)
		json_object_set_new(o, "data_at", json_integer((json_int_t)facts->data_at));
	return put_line(m, o, line, fault);
}

bool ctl_manifest_copy(struct ctl_manifest *m, json_t *from, const struct ctl_manifest_line *line,
	struct fault *fault)
{
	json_object_del(from, "etag");
	json_object_del(from, "side");
	return put_line(m, json_incref(from), line, fault);
}
