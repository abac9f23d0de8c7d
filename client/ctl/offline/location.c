/*
 * Places. In memory, an object's name has its key before it, and size and ETag after it, so all of
 * them are one string.
 */
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/config/url_text.h"
#include "daemon/shard/format.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char wild[] = "*?["; /* make a path that does not exist a pattern */

/* Length of @path's first @n bytes up to and including the last slash. */
static size_t parent_bytes(const char *path, size_t n)
{
	while (n > 0 && path[n - 1] != '/')
		n--;
	return n;
}

/* ---- files ---- */

/* The absolute path of the place. Links are resolved in its directory, not in names below that: as
 * in the daemon, the side files of a shard are where its name is. NULL: errno. */
static char *absolute(const struct ctl_place *p)
{
	char *before = p->prefix > 0 ? strndup(p->path, p->prefix) : strdup("."), *whole = NULL;
	char *root = before ? realpath(before, NULL) : NULL;

	if (root && asprintf(&whole, "%s%s%s", root, p->path[p->prefix] ? "/" : "",
			    p->path + p->prefix) < 0)
		whole = NULL;
	free(before);
	free(root);
	return whole;
}

static bool list_files(struct ctl_place *p, struct fault *fault)
{
	struct stat st;
	bool there = stat(p->path, &st) == 0, fine;
	char *whole;

	if (!there && (errno != ENOENT || !strpbrk(p->path, wild)))
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	p->prefix =
		there && S_ISDIR(st.st_mode)
			? strlen(p->path)
			: parent_bytes(p->path, there ? strlen(p->path) : strcspn(p->path, wild));
	whole = absolute(p);
	if (!whole)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	fine = shard_list_read(&p->list, whole, fault);
	free(whole);
	p->shards = p->list.count;
	return fine && (p->shards > 0 || fault_set(fault, FAULT_ARGUMENT, "",
						 there ? "contains no files" : "matches no file"));
}

/* ---- objects ---- */

struct reading {
	struct ctl_place *p;
	struct stores *stores;
	char *prefix;	   /* the key of the root; owned */
	char before[1025]; /* the key before */
	struct ctl_progress progress;
	bool failed; /* a key was refused */
	struct fault *fault;

	/* of a server without listings */
	const struct shard_list *names;
	struct answer *answer; /* of each name */
};

static bool add(struct reading *r, const char *name, const struct object *object)
{
	const char *etag = object->etag ? object->etag : "";
	size_t n = strlen(etag) + 1;
	char after[sizeof(object->size) + STORE_ETAG_BYTES];

	if (n > STORE_ETAG_BYTES)
		return fault_set(r->fault, FAULT_DATA, "",
			"key '%s%s' has an ETag of over 127 bytes; upload it again", r->prefix,
			name);
	memcpy(after, &object->size, sizeof(object->size));
	memcpy(after + sizeof(object->size), etag, n);
	return shard_list_add_between(
		&r->p->list, r->prefix, name, after, sizeof(object->size) + n, r->fault);
}

/* Object @at of the list. */
static struct object object_at(const struct ctl_place *p, uint64_t at)
{
	const char *name = shard_list_name(&p->list, at), *after = name + strlen(name) + 1;
	struct object object = {.bucket = p->bucket,
		.key = name - p->key_bytes,
		.etag = after + sizeof(object.size)};

	memcpy(&object.size, after, sizeof(object.size));
	if (!*object.etag)
		object.etag = NULL;
	return object;
}

/* Finds the object called @name. Shards and side files are sorted separately. */
static bool find_name(const struct ctl_place *p, const char *name, struct object *object)
{
	struct shard_list sides = {
		.paths = p->list.paths, .at = p->list.at + p->list.count, .count = p->sides};
	int64_t at = shard_list_find(&p->list, name);

	if (at < 0 && (at = shard_list_find(&sides, name)) >= 0)
		at += (int64_t)p->list.count;
	if (at >= 0)
		*object = object_at(p, (uint64_t)at);
	return at >= 0;
}

static bool find_object(const void *context, const char *url, struct object *object)
{
	const struct ctl_place *p = context;
	size_t n = strlen(p->list.root);

	if (strncmp(url, p->list.root, n) == 0 && url[n] == '/' &&
		find_name(p, url + n + 1, object))
		return true;
	return p->masks && find_object(p->masks, url, object);
}

/* Has the path a part that is empty, "." or ".."? *@hidden: another one that begins with a dot. */
static bool is_odd(const char *name, bool *hidden)
{
	*hidden = false;
	for (const char *part = name;; part++) {
		size_t n = strcspn(part, "/");

		if (n == 0 || (n <= 2 && strncmp(part, "..", n) == 0))
			return true;
		*hidden |= *part == '.';
		part += n;
		if (!*part)
			return false;
	}
}

/* Takes the next key of the listing. */
static bool take(void *context, const struct object *object)
{
	struct reading *r = context;
	const char *name = object->key + r->p->key_bytes, *wrong = NULL;
	size_t n = strlen(name);
	bool hidden = false, directory = n == 0 || name[n - 1] == '/';

	ctl_progress_add(&r->progress, 1);
	if (strcmp(r->before, object->key) >= 0)
		wrong = "is listed twice, or after a key that sorts after it, so the listing "
			"cannot be trusted";
	else if (directory ? object->size > 0 /* consoles write empty ones */
			   : is_odd(name, &hidden))
		wrong = "ends in '/', or has a part that is empty, . or .., so it cannot be a "
			"file; copy it to another key, or delete it";
	snprintf(r->before, sizeof(r->before), "%s", object->key);
	if (wrong)
		fault_set(r->fault, FAULT_DATA, "", "key '%s%s' %s", r->prefix, name, wrong);
	r->failed = wrong || !(directory || hidden || add(r, name, object));
	return !r->failed;
}

static bool list_keys(struct reading *r)
{
	bool fine;

	ctl_progress_begin(&r->progress, r->p->path, "keys", 0);
	fine = store_list(r->stores, r->p->bucket, r->prefix, take, r, r->fault);
	ctl_progress_end(&r->progress);
	return fine && !r->failed;
}

static bool see_one(void *context, const struct object *object)
{
	(void)object;
	*(bool *)context = true;
	return false;
}

/* Refuses the name of a directory, before all that is next to it is listed: perhaps the whole
 * bucket. */
static bool is_no_directory(struct reading *r, const char *name)
{
	bool any = false, fine;
	char *prefix;

	if (!*name)
		return true;
	if (asprintf(&prefix, "%s%s/", r->prefix, name) < 0)
		return fault_memory(r->fault);
	fine = store_list(r->stores, r->p->bucket, prefix, see_one, &any, r->fault);
	free(prefix);
	return fine && (!any || fault_set(r->fault, FAULT_ARGUMENT, "",
					"is a prefix of keys; write it with a '/' at its end"));
}

/* ---- servers without listings ---- */

struct answer {
	bool there;
	uint64_t size;
	char etag[STORE_ETAG_BYTES];
};

/* Asks for one object. One that is not there is no fault. */
static bool ask(const struct parallel *p, struct fault *fault)
{
	struct reading *r = p->context;
	struct answer *to = &r->answer[p->i];
	const char *name = shard_list_name(r->names, p->i);
	char *key;

	if (p->i > 0 && strcmp(name, shard_list_name(r->names, p->i - 1)) == 0)
		return true; /* shards share a side file */
	if (asprintf(&key, "%s%s", r->prefix, name) < 0)
		return fault_memory(fault);
	to->there = store_head(r->stores, r->p->bucket, key, &to->size, to->etag, fault);
	free(key);
	ctl_progress_add(&r->progress, 1);
	return to->there || fault->code == FAULT_CHANGED;
}

static bool ask_all(struct reading *r)
{
	uint64_t n = r->names->count;

	r->answer = calloc(n + 1, sizeof(*r->answer));
	if (!r->answer)
		return fault_memory(r->fault);
	ctl_progress_begin(&r->progress, r->p->path, "objects", n);
	bool fine = parallel_for(n, CTL_GETS, ask, r, r->fault) == n;

	ctl_progress_end(&r->progress);
	for (uint64_t i = 0; fine && i < n; i++) {
		const struct object got = {.size = r->answer[i].size, .etag = r->answer[i].etag};

		fine = !r->answer[i].there || add(r, shard_list_name(r->names, i), &got);
	}
	free(r->answer);
	return fine;
}

bool ctl_place_unlisted(const char *url)
{
	return strncmp(url, "https://", 8) == 0;
}

/* ---- opening ---- */

/* Chooses the shards that the URL means; @name: below the root, "": all of them. */
static bool choose(struct ctl_place *p, const char *name, struct fault *fault)
{
	int64_t one;

	if (!*name)
		return p->shards > 0 ||
		       fault_set(fault, FAULT_ARGUMENT, "",
			       "contains no shards; must be the prefix of their keys");
	one = shard_list_find(&p->list, name);
	p->first = (uint64_t)one;
	p->shards = 1;
	return one >= 0 ||
	       fault_set(fault, FAULT_ARGUMENT, "",
		       "is not in the store, or is a shard's side file; must be a shard, or a "
		       "prefix of keys with a '/' at its end");
}

static bool list_objects(struct reading *r)
{
	struct ctl_place *p = r->p;
	const char *key, *name;

	p->objects = (struct objects){.stores = r->stores, .find = find_object, .context = p};
	p->bucket = store_bucket(r->stores, p->path, &key, r->fault);
	if (!p->bucket)
		return false;
	p->key_bytes = parent_bytes(key, strlen(key));
	name = key + p->key_bytes;
	r->prefix = strndup(key, p->key_bytes);
	p->list.root = strndup(p->path, (size_t)(name - p->path) - (name[-1] == '/'));
	if (!r->prefix || !p->list.root)
		return fault_memory(r->fault);
	if (!(r->names ? ask_all(r) : is_no_directory(r, name) && list_keys(r)) ||
		!shard_list_split(&p->list, &p->sides, r->fault))
		return false;
	p->shards = p->list.count;
	return r->names || choose(p, name, r->fault);
}

bool ctl_place_open(struct ctl_place *p, struct stores *stores, const char *path,
	const struct shard_list *names, const struct ctl_place *masks, struct fault *fault)
{
	struct reading r = {.p = p, .stores = stores, .names = names, .fault = fault};
	bool fine;

	*p = (struct ctl_place){.path = path, .remote = url_text_is(path), .masks = masks};
	fine = p->remote ? list_objects(&r) : list_files(p, fault);
	free(r.prefix);
	if (fine) {
		p->indexes = mds_indexes_new(p->list.root);
		fine = p->indexes || fault_memory(fault);
	}
	if (!fine)
		ctl_place_close(p);
	return fine;
}

void ctl_place_close(struct ctl_place *p)
{
	shard_list_free(&p->list);
	mds_indexes_free(p->indexes);
	*p = (struct ctl_place){.path = NULL};
}

/* ---- its shards ---- */

const char *ctl_place_name(const struct ctl_place *p, uint64_t i)
{
	return shard_list_name(&p->list, p->first + i);
}

void ctl_place_path(const struct ctl_place *p, uint64_t i, char path[PATH_MAX + 1])
{
	bool slash = p->prefix > 0 && p->path[p->prefix - 1] != '/';

	if (p->remote)
		ctl_place_file(p, i, path);
	else
		snprintf(path, PATH_MAX + 1, "%.*s%s%s", (int)p->prefix, p->path, slash ? "/" : "",
			ctl_place_name(p, i));
}

void ctl_place_file(const struct ctl_place *p, uint64_t i, char path[PATH_MAX + 1])
{
	shard_list_path(&p->list, p->first + i, path, PATH_MAX + 1);
}

struct object ctl_place_object(const struct ctl_place *p, uint64_t i)
{
	return object_at(p, p->first + i);
}

unsigned ctl_place_threads(const struct ctl_place *p)
{
	return p->remote ? CTL_GETS : parallel_processors();
}

bool ctl_place_etag_ok(const char *etag, struct fault *fault)
{
	const char *wrong = !etag			  ? "has no ETag"
			    : strncmp(etag, "W/", 2) == 0 ? "has a weak ETag (W/…)"
			    : strpbrk(etag, "\"\\\r\n\t") ? "has an ETag with odd characters"
							  : NULL;

	return !wrong ||
	       fault_set(fault, FAULT_DATA, "",
		       "%s, so tokend could not notice that it was replaced; use a server that "
		       "sends strong ETags",
		       wrong);
}

/* ---- their side files ---- */

/* Adds the side file called @name, if it exists. */
static void put_side(const struct ctl_place *p, const char *name, json_t *sides)
{
	char path[2 * PATH_MAX];
	struct object object;
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", p->list.root, name);
	if (p->remote && find_name(p, name, &object))
		json_object_set_new(
			sides, name, json_pack("[I,s?]", (json_int_t)object.size, object.etag));
	else if (!p->remote && stat(path, &st) == 0 && S_ISREG(st.st_mode))
		json_object_set_new(sides, name, json_pack("[I]", (json_int_t)st.st_size));
}

json_t *ctl_place_sides(const struct ctl_place *p, uint64_t i, const struct shard_format *format)
{
	const struct shard_format *formats[] = {format, &shard_flat};
	const char *name = ctl_place_name(p, i);
	json_t *sides = json_object();
	struct object mask;
	char path[PATH_MAX], side[PATH_MAX];

	for (unsigned f = format == &shard_flat; f < 2; f++)
		for (const struct shard_companion *c = formats[f]->companions; c && c->ending; c++)
			for (size_t n = strlen(name) + 1;
				!c->alone && side_name(c, name, &n, side);)
				put_side(p, side, sides);
	if (p->masks && find_name(p->masks, name, &mask)) {
		snprintf(path, sizeof(path), "%s/%s", p->masks->list.root, name);
		json_object_set_new(
			sides, path, json_pack("[I,s?]", (json_int_t)mask.size, mask.etag));
	}
	return sides;
}
