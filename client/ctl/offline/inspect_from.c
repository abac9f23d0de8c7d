/* The manifest is checked as a whole first, so its lines can be copied member by member. */
#include "client/ctl/offline/inspect_from.h"

#include "client/ctl/offline/inspect_ahead.h"
#include "client/ctl/offline/stores.h"
#include "client/ctl/offline/sums.h"
#include "daemon/catalog/manifest.h"
#include "daemon/shard/json.h"
#include "daemon/store/sums.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct from {
	struct inspect *in;
	const char *path; /* of the manifest that is read */
	struct manifest manifest;
	struct ctl_listing listing;
	uint64_t *sums; /* of all its pieces; NULL: to be read */
	uint64_t sums_at;
	FILE *file;
	char *text; /* of a line */
	size_t room;
};

static bool report(struct from *f, const char *name, const char *text)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", f->listing.list.root, name);
	inspect_unread(f->in, path, text);
	return false;
}

/* ---- objects ---- */

/* Adds the names of a line's side files. */
static bool add_sides(struct shard_list *names, const json_t *line, struct fault *fault)
{
	const char *name;
	json_t *value;

	json_object_foreach(json_object_get(line, "side"), name, value)
	{
		if (!shard_list_add(names, name, fault))
			return false;
	}
	return true;
}

/*
 * Line @i, parsed, which must be that of shard @i: the file may have changed since it was checked.
 * NULL: the end, or @fault.
 */
static json_t *next_line(struct from *f, uint64_t i, struct fault *fault)
{
	ssize_t n = getline(&f->text, &f->room, f->file);
	bool end = i == f->manifest.list.count;

	fault->code = FAULT_NONE;
	if (ferror(f->file))
		fault_errno(fault, errno, "", "%s: %s", f->path, strerror(errno));
	json_t *line = n > 0 && !end ? json_object_of(f->text, (size_t)n, fault) : NULL;
	const char *path = json_string_value(json_object_get(line, "path"));

	if (fault->code != FAULT_NONE || (end && n < 0) ||
		(path && strcmp(path, shard_list_name(&f->manifest.list, i)) == 0))
		return line;
	json_decref(line);
	fault_set(fault, FAULT_DATA, "", "%s " PHRASE_CHANGED, f->path);
	return NULL;
}

/* Leaves each name once: shards of a directory share side files. */
static bool add_once(struct shard_list *once, struct shard_list *names, struct fault *fault)
{
	bool fine = true;

	shard_list_sort(names);
	for (uint64_t i = 0; fine && i < names->count; i++) {
		const char *name = shard_list_name(names, i);

		if (i == 0 || strcmp(name, shard_list_name(names, i - 1)) != 0)
			fine = shard_list_add(once, name, fault);
	}
	return fine;
}

static bool add_names(struct from *f, struct shard_list *once, struct fault *fault)
{
	struct shard_list all = {0}, *names = &all;
	bool fine = true;
	json_t *line;

	for (uint64_t i = 0; fine && (line = next_line(f, i, fault)) != NULL; i++) {
		fine = shard_list_add(names, shard_list_name(&f->manifest.list, i), fault) &&
		       add_sides(names, line, fault);
		json_decref(line);
	}
	rewind(f->file);
	fine = fine && fault->code == FAULT_NONE && add_once(once, names, fault);
	shard_list_free(names);
	return fine;
}

/* Finds the objects: in a listing, or, on a server that has none, one by one. */
static bool find_objects(struct from *f, const char *url, struct fault *fault)
{
	struct shard_list names = {0};
	bool fine;

	if (!ctl_listing_none(url))
		return ctl_listing_open(&f->listing, f->in->stores, url, f->in->masks, fault);
	fine = add_names(f, &names, fault) &&
	       ctl_listing_ask(&f->listing, f->in->stores, url, &names, fault);
	shard_list_free(&names);
	return fine;
}

/* ---- comparing ---- */

static bool compare_one(struct from *f, uint64_t i)
{
	const char *name = shard_list_name(&f->manifest.list, i);
	int64_t found = shard_list_find(&f->listing.list, name);
	struct object object;
	char text[512];

	if (found < 0) {
		snprintf(text, sizeof(text),
			"is in %.300s:%" PRIu64 ", but not in the store; upload it", f->path,
			i + 1);
		return report(f, name, text);
	}
	object = ctl_listing_object(&f->listing, (uint64_t)found);
	if (object.size != f->manifest.sizes[i]) {
		snprintf(text, sizeof(text),
			"has %" PRIu64 " bytes, but %" PRIu64 " in %.300s:%" PRIu64
			"; upload it again, or write that manifest anew",
			object.size, f->manifest.sizes[i], f->path, i + 1);
		return report(f, name, text);
	}
	return ctl_listing_etag_ok(object.etag, text, sizeof(text)) || report(f, name, text);
}

/* Reports shards that the manifest has not. */
static bool compare_rest(struct from *f)
{
	char text[512];
	bool fine = true;

	for (uint64_t i = 0; i < f->listing.list.count; i++) {
		const char *name = shard_list_name(&f->listing.list, i);

		if (shard_list_find(&f->manifest.list, name) >= 0)
			continue;
		snprintf(text, sizeof(text),
			"is in the store, but not in %.300s; delete it, or write that manifest "
			"anew with it",
			f->path);
		fine = report(f, name, text);
	}
	return fine;
}

static bool compare(struct from *f)
{
	bool fine = true;

	for (uint64_t i = 0; i < f->manifest.list.count; i++)
		fine = compare_one(f, i) && fine;
	return compare_rest(f) && fine;
}

/* ---- writing ---- */

/* The digest of the manifest's own lines, for its sums. */
static bool digest_of(struct from *f, uint64_t *digest, struct fault *fault)
{
	json_t *line;

	for (uint64_t i = 0; (line = next_line(f, i, fault)) != NULL; i++) {
		const char *etag = json_string_value(json_object_get(line, "etag"));

		*digest = sums_manifest(*digest, f->manifest.sizes[i], etag ? etag : "");
		json_decref(line);
	}
	rewind(f->file);
	return fault->code == FAULT_NONE;
}

/* The sums next to the manifest, if there are some: the bytes were uploaded as they were. */
static bool find_sums(struct from *f, struct fault *fault)
{
	struct sums_head head = {.piece = f->in->sums_piece, .shards = f->manifest.list.count};

	if (f->in->sums_piece == 0)
		return true;
	if (!digest_of(f, &head.manifest, fault))
		return false;
	for (uint64_t i = 0; i < f->manifest.list.count; i++)
		head.pieces += sums_pieces(f->manifest.sizes[i], head.piece);
	f->sums = ctl_sums_load(f->path, &head);
	return true;
}

static bool copy_line(struct from *f, uint64_t i, json_t *line, struct fault *fault)
{
	uint64_t at =
		(uint64_t)shard_list_find(&f->listing.list, shard_list_name(&f->manifest.list, i));
	struct object object = ctl_listing_object(&f->listing, at);
	uint64_t *read = NULL;
	struct ctl_manifest_line to = {
		.size = object.size, .etag = object.etag, .listing = &f->listing, .shard = at};

	if (f->sums) {
		to.sums = f->sums + f->sums_at;
		f->sums_at += sums_pieces(object.size, f->in->sums_piece);
	} else if (f->in->sums_piece > 0) {
		const struct ctl_sums_source source = {.stores = f->in->stores,
			.object = object,
			.size = object.size,
			.threads = CTL_GETS,
			.progress = &f->in->progress};

		to.sums = read = ctl_sums_read(&source, f->in->sums_piece, fault);
		if (!read)
			return fault_prefix(fault, "%s: ", object.key);
	}
	bool fine = ctl_manifest_copy(f->in->manifest, line, &to, fault);

	free(read);
	return fine;
}

static bool copy_lines(struct from *f, struct fault *fault)
{
	uint64_t bytes = 0;
	bool fine = true;
	json_t *line;

	if (!find_sums(f, fault))
		return false;
	for (uint64_t i = 0; i < f->manifest.list.count; i++)
		bytes += f->manifest.sizes[i];
	if (f->in->sums_piece > 0 && !f->sums)
		ctl_progress_begin(&f->in->progress, f->listing.list.root, bytes);
	for (uint64_t i = 0; fine && (line = next_line(f, i, fault)) != NULL; i++) {
		fine = copy_line(f, i, line, fault);
		json_decref(line);
	}
	ctl_progress_end(&f->in->progress);
	return fine && fault->code == FAULT_NONE;
}

/* ---- all of it ---- */

/* Reads the objects, and makes their lines anew. */
static void read_objects(struct from *f, const char *url)
{
	char text[256];

	for (uint64_t i = 0; i < f->manifest.list.count; i++)
		if (f->manifest.tokens[i] && !f->manifest.digests[i]) {
			snprintf(text, sizeof(text),
				"line %" PRIu64 " has no digest to compare with; write it anew "
				"with --deep",
				i + 1);
			inspect_unread(f->in, f->path, text);
			return;
		}
	f->in->from = &f->manifest;
	inspect_ahead(f->in, &f->listing, url);
	f->in->from = NULL;
}

void inspect_from(struct inspect *in, const char *from, const char *url)
{
	struct from f = {.in = in, .path = from};
	struct shard_hint hint = {.type = SHARD_U16};
	const struct listed *listed = listed_find(&in->all, url, &(int64_t){0});
	struct fault fault;

	/* Rows of a file are compared as the config reads them. */
	if (in->deep && listed)
		hint.window_tokens = listed->stream->seq_len + listed->stream->extra;
	if (!manifest_read(&f.manifest, from, "/", NULL, NULL, &hint, &fault)) {
		inspect_unread(in, from, fault.text);
		return;
	}
	f.file = fopen(from, "re");
	if (!f.file)
		fault_errno(&fault, errno, "", "%s", strerror(errno));
	if (!f.file || !find_objects(&f, url, &fault))
		inspect_unread(in, url, fault.text);
	else if (compare(&f)) {
		if (in->deep)
			read_objects(&f, url);
		else if (!copy_lines(&f, &fault))
			inspect_unread(in, url, fault.text);
	}
	if (f.file)
		fclose(f.file);
	ctl_listing_close(&f.listing);
	manifest_free(&f.manifest);
	free(f.sums);
	free(f.text);
}
