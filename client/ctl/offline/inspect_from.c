/*
 * `tokctl inspect --from`: a manifest of objects, from that of the files that were uploaded. It is
 * checked as a whole first, so its lines can be copied member by member.
 */
#include "client/ctl/offline/inspect.h"
#include "daemon/shard/json.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct from {
	struct inspect *in;
	const char *path; /* of the manifest that is read */
	struct manifest manifest;
	const struct ctl_listing *listing; /* of in->place */
	struct shard_list names;	   /* that should be there */
};

static bool report(struct from *f, const char *name, const char *text)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", f->listing->list.root, name);
	inspect_unread(f->in, path, text);
	return false;
}

/*
 * Calls @take for each line, parsed, which must be that of shard @i: the file may have changed
 * since it was checked.
 */
static bool each_line(struct from *f,
	bool (*take)(struct from *f, uint64_t i, json_t *line, struct fault *fault),
	struct fault *fault)
{
	FILE *file = fopen(f->path, "re");
	uint64_t i = 0, count = f->manifest.list.count;
	char *text = NULL;
	size_t room = 0;
	ssize_t n;
	bool fine = true;

	if (!file)
		return fault_errno(fault, errno, "", "%s: %s", f->path, strerror(errno));
	for (; fine && (n = getline(&text, &room, file)) > 0; i++) {
		json_t *line = json_object_of(text, (size_t)n, fault);
		const char *path = json_string_value(json_object_get(line, "path"));

		fine = i < count && path && strcmp(path, shard_list_name(&f->manifest.list, i)) == 0
			       ? take(f, i, line, fault)
			       : fault_set(fault, FAULT_DATA, "", "%s " PHRASE_CHANGED, f->path);
		json_decref(line);
	}
	if (fine && ferror(file))
		fine = fault_errno(fault, errno, "", "%s: %s", f->path, strerror(errno));
	else if (fine && i < count)
		fine = fault_set(fault, FAULT_DATA, "", "%s " PHRASE_CHANGED, f->path);
	fclose(file);
	free(text);
	return fine;
}

/* ---- objects ---- */

/* Adds the names of a shard and its side files. */
static bool add_names(struct from *f, uint64_t i, json_t *line, struct fault *fault)
{
	const char *name;
	json_t *value;

	if (!shard_list_add(&f->names, shard_list_name(&f->manifest.list, i), fault))
		return false;
	json_object_foreach(json_object_get(line, "side"), name, value)
	{
		if (!shard_list_add(&f->names, name, fault))
			return false;
	}
	return true;
}

/* Opens the place: from a listing, or, on a server that has none, by asking for each object. */
static bool find_objects(struct from *f, const char *url, struct fault *fault)
{
	struct inspect *in = f->in;
	struct shard_list once = {0};
	const char *last = "", *name;
	bool fine;

	if (!ctl_listing_none(url))
		return ctl_place_open(&in->place, in->stores, url, NULL,
			in->has_masks ? &in->masks : NULL, fault);
	fine = each_line(f, add_names, fault);
	shard_list_sort(&f->names); /* shards of a directory share side files */
	for (uint64_t i = 0; fine && i < f->names.count; i++, last = name) {
		name = shard_list_name(&f->names, i);
		fine = strcmp(name, last) == 0 || shard_list_add(&once, name, fault);
	}
	fine = fine && ctl_place_open(&in->place, in->stores, url, &once, NULL, fault);
	shard_list_free(&once);
	shard_list_free(&f->names);
	return fine;
}

/* ---- comparing ---- */

static bool compare_one(struct from *f, uint64_t i)
{
	const char *name = shard_list_name(&f->manifest.list, i);
	int64_t found = shard_list_find(&f->listing->list, name);
	struct object object;
	struct fault fault;
	char text[512];

	if (found < 0) {
		snprintf(text, sizeof(text),
			"is in %.300s:%" PRIu64 ", but not in the store; upload it", f->path,
			i + 1);
		return report(f, name, text);
	}
	object = ctl_listing_object(f->listing, (uint64_t)found);
	if (object.size != f->manifest.sizes[i]) {
		snprintf(text, sizeof(text),
			"has %" PRIu64 " bytes, but %" PRIu64 " in %.300s:%" PRIu64
			"; upload it again, or write that manifest anew",
			object.size, f->manifest.sizes[i], f->path, i + 1);
		return report(f, name, text);
	}
	return ctl_listing_etag_ok(object.etag, &fault) || report(f, name, fault.text);
}

/* Reports shards that the manifest has not. */
static bool compare_rest(struct from *f)
{
	char text[512];
	bool fine = true;

	for (uint64_t i = 0; i < f->listing->list.count; i++) {
		const char *name = shard_list_name(&f->listing->list, i);

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

static bool copy_line(struct from *f, uint64_t i, json_t *line, struct fault *fault)
{
	uint64_t at =
		(uint64_t)shard_list_find(&f->listing->list, shard_list_name(&f->manifest.list, i));
	const struct ctl_manifest_line to = {.etag = ctl_listing_object(f->listing, at).etag,
		.listing = f->listing,
		.shard = at};

	return ctl_manifest_copy(f->in->manifest, line, &to, fault);
}

/* Reads the objects, and makes their lines anew. */
static void read_objects(struct from *f)
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
	inspect_place(f->in);
	f->in->from = NULL;
}

void inspect_from(struct inspect *in, const char *from, const char *url)
{
	struct from f = {.in = in, .path = from, .listing = &in->place.listing};
	struct shard_hint hint = {.type = SHARD_U16};
	const struct listed *listed = inspect_listed(in, url, &(int64_t){0});
	struct fault fault;

	/* Rows of a file are compared as the config reads them. */
	if (in->deep && listed)
		hint.window_tokens = listed->stream->seq_len + listed->stream->extra;
	if (!manifest_read(&f.manifest, from, "/", NULL, NULL, &hint, &fault)) {
		inspect_unread(in, from, fault.text);
		return;
	}
	if (find_objects(&f, url, &fault)) {
		if (!compare(&f))
			; /* reported */
		else if (in->deep)
			read_objects(&f);
		else if (!each_line(&f, copy_line, &fault))
			inspect_unread(in, url, fault.text);
		ctl_place_close(&in->place);
	} else {
		inspect_unread(in, url, fault.text);
	}
	manifest_free(&f.manifest);
}
