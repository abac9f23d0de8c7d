/* Places. */
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- files ---- */

/* Lists the files at the place's path. Links are resolved in the root, not in names below that: as
 * in the daemon, the side files of a shard are where its name is. */
static bool list_files(struct ctl_place *p, struct fault *fault)
{
	struct shard_list *list = &p->set.list;
	const char *before = p->path[0] == '/' ? "" : "./"; /* not part of the path as given */
	size_t n = strlen(before);
	char path[PATH_MAX + 1], *root;

	if (!p->path[0]) /* it is not the working directory */
		return fault_errno(fault, ENOENT, "", "%s", strerror(ENOENT));
	snprintf(path, sizeof(path), "%s%s", before, p->path);
	if (!shard_list_read(list, path, fault)) {
		if (strncmp(fault->text, before, n) == 0)
			memmove(fault->text, fault->text + n, strlen(fault->text + n) + 1);
		return false;
	}
	if (list->count == 0)
		return fault_set(fault, FAULT_ARGUMENT, "", "no files found");
	root = realpath(list->root, NULL);
	if (!root)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	p->prefix = strlen(list->root) > n ? strlen(list->root) - n : 0;
	free(list->root);
	list->root = root;
	return true;
}

/* ---- objects ---- */

struct reading {
	struct dataset *d;
	char *prefix; /* the key of the root; owned */
	bool failed;  /* a key was refused */
	struct fault *fault;
	const struct shard_list *names; /* to ask for; NULL: they are listed */
};

/* Adds an object to the list. After its name are its ETag, "" if that does not tell whether it was
 * replaced, and its size. */
static bool add(
	struct reading *r, const char *name, const struct object *object, struct fault *fault)
{
	const char *etag = object->etag && manifest_etag_ok(object->etag) ? object->etag : "";
	size_t n = strlen(etag) + 1;
	char after[STORE_ETAG_BYTES + sizeof(object->size)];

	memcpy(after, etag, n);
	memcpy(after + n, &object->size, sizeof(object->size));
	return shard_list_add_between(
		&r->d->list, r->prefix, name, after, n + sizeof(object->size), fault);
}

/* Takes the next key of the listing. */
static bool take(void *context, const struct object *object)
{
	struct reading *r = context;
	const struct shard_list *list = &r->d->list;
	const char *name = object->key + r->d->key_bytes, *wrong = NULL;

	ctl_progress_add(1);
	if (object->size == 0 && (!*name || bytes_ends_in(name, "/")))
		return true; /* consoles write such directories */
	if (!manifest_name_ok(name))
		wrong = "ends in '/', or has a part that is empty, . or .., so it cannot be a "
			"file; copy it to another key, or delete it";
	else if (*name == '.' || strstr(name, "/."))
		return true;
	else if (list->count > 0 && strcmp(shard_list_name(list, list->count - 1), name) >= 0)
		wrong = "is listed twice, or after a key that sorts after it, so the listing "
			"cannot be trusted";
	if (wrong)
		fault_set(r->fault, FAULT_DATA, "", "key '%s%s' %s", r->prefix, name, wrong);
	r->failed = wrong || !add(r, name, object, r->fault);
	return !r->failed;
}

/* Asks for the object called p->i. One that is not there is no fault. */
static bool ask(const struct parallel *p, struct fault *fault)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over the list */
	struct reading *r = p->context;
	const char *name = shard_list_name(r->names, p->i);
	char key[PATH_MAX], etag[STORE_ETAG_BYTES];
	struct object object = {.etag = etag};

	if (p->i > 0 && strcmp(name, shard_list_name(r->names, p->i - 1)) == 0)
		return true; /* shards share a side file */
	snprintf(key, sizeof(key), "%s%s", r->prefix, name);
	bool there = store_head(r->d->finder.stores, r->d->bucket, key, &object.size, etag, fault);

	ctl_progress_add(1);
	if (!there)
		return fault->code == FAULT_CHANGED;
	pthread_mutex_lock(&lock);
	bool fine = add(r, name, &object, fault);

	pthread_mutex_unlock(&lock);
	return fine;
}

/* Lists the names that side files of the shard called @shard may have. */
static bool list_sides(struct shard_list *names, const char *shard, struct fault *fault)
{
	bool fine = true;
	char side[PATH_MAX];

	for (const struct shard_companion *c = shard_companions; c->ending; c++)
		for (size_t n = strlen(shard) + 1; fine && side_name(c, shard, &n, side);)
			fine = shard_list_add(names, side, fault);
	return fine;
}

/* Adds an object that is not a shard. */
static bool add_side(struct dataset *d, const char *key, uint64_t size, const char *etag)
{
	return json_object_set_new(d->sides, key, json_pack("[I,s?]", (json_int_t)size, etag)) == 0;
}

/* Lists the objects, or asks for those that are named, and fills in what follows their names. */
static bool read_objects(struct reading *r)
{
	struct dataset *d = r->d;
	uint64_t n = r->names ? r->names->count : 0, sides, size;
	bool fine;

	ctl_progress_begin(d->list.root, r->names ? "objects" : "keys", n);
	fine = r->names ? parallel_for(n, CTL_GETS, ask, r, r->fault) == n
			: store_list(d->finder.stores, d->bucket, r->prefix, take, r, r->fault);
	ctl_progress_end();
	if (!fine || r->failed || !shard_list_split(&d->list, &sides, r->fault) ||
		!dataset_resize(d, d->list.count + 1, r->fault))
		return false;
	d->sides = json_object();
	for (uint64_t i = 0; fine && i < d->list.count + sides; i++) {
		const char *name = shard_list_name(&d->list, i), *etag = name + strlen(name) + 1;

		memcpy(&size, etag + strlen(etag) + 1, sizeof(size));
		if (i < d->list.count)
			d->entry[i].bytes = size;
		else
			fine = add_side(d, name - d->key_bytes, size, *etag ? etag : NULL);
	}
	return fine || fault_memory(r->fault);
}

/* Reads the shards at @url into @d; @names as ctl_place_open(). */
static bool list_objects(
	struct dataset *d, const char *url, const struct shard_list *names, struct fault *fault)
{
	struct reading r = {.d = d, .names = names, .fault = fault};
	struct shard_list one = {.root = NULL};
	const char *key, *name;

	d->bucket = store_bucket(d->finder.stores, url, &key, fault);
	if (!d->bucket)
		return false;
	for (name = key + strlen(key); name > key && name[-1] != '/';)
		name--;
	d->key_bytes = (size_t)(name - key);
	r.prefix = strndup(key, d->key_bytes);
	d->list.root = strndup(url, (size_t)(name - url) - (name[-1] == '/'));
	bool fine = (r.prefix && d->list.root) || fault_memory(fault);

	if (*name) { /* one shard, and its side files */
		fine = fine && shard_list_add(&one, name, fault) && list_sides(&one, name, fault);
		shard_list_sort(&one);
		r.names = &one;
	}
	fine = fine && read_objects(&r);
	shard_list_free(&one);
	free(r.prefix);
	return fine &&
	       (d->list.count > 0 || names ||
		       fault_set(fault, FAULT_ARGUMENT, "",
			       "is not in the store, or contains no shards; must be a shard, "
			       "or a prefix of keys with a '/' at its end"));
}

/* Adds the objects at @url to the side files. */
static bool list_masks(struct dataset *d, const char *url, struct fault *fault)
{
	struct dataset masks = {.finder = d->finder};
	bool fine = list_objects(&masks, url, NULL, fault) || fault_prefix(fault, "%s: ", url);
	char path[PATH_MAX + 1];

	for (uint64_t i = 0; fine && i < masks.list.count; i++) {
		const struct object object = dataset_object(&masks, i);

		shard_list_path(&masks.list, i, path, sizeof(path));
		fine = add_side(d, path, object.size, object.etag) || fault_memory(fault);
	}
	dataset_close(&masks);
	return fine;
}

/* ---- both ---- */

bool ctl_place_open(struct ctl_place *p, struct stores *stores, const char *path,
	const struct shard_list *names, const char *masks, struct fault *fault)
{
	struct dataset *d = &p->set;

	*p = (struct ctl_place){.path = path,
		.masks = masks,
		.set.finder = {.stores = stores, .find = dataset_find_object, .context = d}};
	bool fine = !url_text_is(path) ? list_files(p, fault)
				       : list_objects(d, path, names, fault) &&
						 (!masks || list_masks(d, masks, fault));

	if (fine) {
		d->hint.indexes = mds_indexes_new();
		fine = d->hint.indexes || fault_memory(fault);
	}
	if (!fine)
		dataset_close(&p->set);
	return fine;
}

const char *ctl_place_path(const struct ctl_place *p, uint64_t i, char path[PATH_MAX + 1])
{
	bool slash = p->prefix > 0 && p->path[p->prefix - 1] != '/';

	if (p->set.bucket)
		shard_list_path(&p->set.list, i, path, PATH_MAX + 1);
	else
		snprintf(path, PATH_MAX + 1, "%.*s%s%s", (int)p->prefix, p->path, slash ? "/" : "",
			shard_list_name(&p->set.list, i));
	return path;
}

bool ctl_place_pinned(const struct ctl_place *p, uint64_t i, struct fault *fault)
{
	return !p->set.bucket || dataset_object(&p->set, i).etag ||
	       fault_set(fault, FAULT_DATA, "",
		       "has no strong ETag, so tokend could not notice that it was replaced; use a "
		       "server that sends strong ETags");
}

unsigned ctl_place_threads(const struct ctl_place *p)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

	return p->set.bucket ? CTL_GETS : n < PARALLEL_THREADS ? (unsigned)n : PARALLEL_THREADS;
}

/* ---- their side files ---- */

json_t *ctl_place_sides(const struct ctl_place *p, uint64_t i, struct fault *fault)
{
	const struct dataset *set = &p->set;
	const char *name = shard_list_name(&set->list, i);
	struct shard_list names = {.root = NULL};
	bool fine = list_sides(&names, name, fault);
	json_t *found = json_object();
	char path[2 * PATH_MAX];
	struct stat st;

	for (uint64_t s = 0; fine && s < names.count; s++) {
		const char *side = shard_list_name(&names, s);

		if (set->bucket) {
			snprintf(path, sizeof(path), "%.*s%s", (int)set->key_bytes,
				name - set->key_bytes, side);
			json_object_set_nocheck(found, side, json_object_get(set->sides, path));
			continue;
		}
		snprintf(path, sizeof(path), "%s/%s", set->list.root, side);
		if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
			json_object_set_new_nocheck(
				found, side, json_pack("[I]", (json_int_t)st.st_size));
	}
	if (set->bucket && p->masks) {
		snprintf(path, sizeof(path), "%s%s", p->masks, name);
		json_object_set_nocheck(found, path, json_object_get(set->sides, path));
	}
	shard_list_free(&names);
	if (fine)
		return found;
	json_decref(found);
	return NULL;
}
