/* Each name is stored with its key before it and size and ETag after it, as one piece of memory. */
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"

#include <stdlib.h>
#include <string.h>

struct ctl_listing_side {
	int64_t owner; /* the shard; -1: no shard needs it */
	uint64_t object;
};

struct reading {
	struct ctl_listing *l;
	char *prefix;	   /* the key of the root; owned */
	char before[1025]; /* the key before */
	struct ctl_progress progress;
	struct fault *fault;
};

/* Refuses the key of @name. Always false. */
static bool refuse(struct reading *r, const char *name, const char *text)
{
	return fault_set(r->fault, FAULT_DATA, "", "key '%s%s' %s", r->prefix, name, text);
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

static bool add(
	struct reading *r, const char *name, const struct object *object, struct fault *fault)
{
	size_t n = strlen(object->etag ? object->etag : "") + 1;
	char after[sizeof(object->size) + STORE_ETAG_BYTES];

	if (n > STORE_ETAG_BYTES)
		return fault_set(fault, FAULT_DATA, "",
			"key '%s%s' has an ETag of over 127 bytes; upload it again", r->prefix,
			name);
	memcpy(after, &object->size, sizeof(object->size));
	memcpy(after + sizeof(object->size), object->etag ? object->etag : "", n);
	return shard_list_add_between(
		&r->l->list, r->prefix, name, after, sizeof(object->size) + n, fault);
}

/* Takes the next key of the listing. */
static bool take(void *context, const struct object *object)
{
	struct reading *r = context;
	const char *name = object->key + r->l->key_bytes;
	size_t n = strlen(name);
	bool hidden;

	ctl_progress_add(&r->progress, 1);
	int order = strcmp(r->before, object->key);

	if (order == 0)
		return refuse(r, name,
			"is listed twice, so the listing cannot be trusted; each key must come "
			"once");
	if (order > 0)
		return refuse(r, name,
			"is listed after a key that sorts after it, so the listing cannot be "
			"trusted; keys must come in ascending order");
	snprintf(r->before, sizeof(r->before), "%s", object->key);
	if (n == 0 || name[n - 1] == '/') /* consoles write them to show a directory */
		return object->size == 0 ||
		       refuse(r, name,
			       "ends in '/', so it cannot be a file; copy it to another key, or "
			       "delete it");
	if (is_odd(name, &hidden))
		return refuse(r, name,
			"has a part that is empty, . or .., so it cannot be a file; copy it to "
			"another key, or delete it");
	return hidden || add(r, name, object, r->fault);
}

/* ---- objects ---- */

struct object ctl_listing_object(const struct ctl_listing *l, uint64_t i)
{
	const char *name = shard_list_name(&l->list, i), *after = name + strlen(name) + 1;
	struct object object = {.bucket = l->bucket,
		.key = name - l->key_bytes,
		.etag = after + sizeof(object.size)};

	memcpy(&object.size, after, sizeof(object.size));
	if (!*object.etag)
		object.etag = NULL;
	return object;
}

/* The number of the object called @name (relative path), or -1. Shards and side files are sorted
 * separately. */
static int64_t find_name(const struct ctl_listing *l, const char *name)
{
	struct shard_list sides = {
		.paths = l->list.paths, .at = l->list.at + l->list.count, .count = l->sides};
	int64_t i = shard_list_find(&l->list, name);

	if (i >= 0)
		return i;
	i = shard_list_find(&sides, name);
	return i < 0 ? -1 : (int64_t)l->list.count + i;
}

static bool find_object(const void *context, const char *url, struct object *object)
{
	const struct ctl_listing *l = context;
	size_t n = strlen(l->list.root);
	int64_t i = strncmp(url, l->list.root, n) == 0 && url[n] == '/' ? find_name(l, url + n + 1)
									: -1;

	if (i >= 0)
		*object = ctl_listing_object(l, (uint64_t)i);
	return i >= 0 || (l->masks && find_object(l->masks, url, object));
}

bool ctl_listing_none(const char *url)
{
	return strncmp(url, "https://", 8) == 0;
}

bool ctl_listing_etag_ok(const char *etag, struct fault *fault)
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

/* ---- side files ---- */

static int by_owner(const void *a, const void *b)
{
	const struct ctl_listing_side *x = a, *y = b;

	if (x->owner != y->owner)
		return x->owner < y->owner ? -1 : 1;
	return x->object < y->object ? -1 : x->object > y->object;
}

static bool find_owners(struct ctl_listing *l, struct fault *fault)
{
	l->side = calloc(l->sides + 1, sizeof(*l->side));
	if (!l->side)
		return fault_memory(fault);
	for (uint64_t i = 0; i < l->sides; i++) {
		uint64_t object = l->list.count + i;

		l->side[i] = (struct ctl_listing_side){
			shard_list_owner(&l->list, shard_list_name(&l->list, object)), object};
	}
	qsort(l->side, l->sides, sizeof(*l->side), by_owner);
	return true;
}

/* Adds "NAME": [size, ETag] to @sides. */
static void add_side(json_t *sides, const char *name, struct object object)
{
	json_object_set_new(sides, name, json_pack("[I,s?]", (json_int_t)object.size, object.etag));
}

json_t *ctl_listing_sides(const struct ctl_listing *l, uint64_t shard)
{
	const char *name = shard_list_name(&l->list, shard);
	int64_t mask = l->masks ? find_name(l->masks, name) : -1;
	json_t *sides = json_object();
	uint64_t lo = 0, hi = l->sides;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (l->side[mid].owner < (int64_t)shard)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < l->sides && l->side[lo].owner == (int64_t)shard; lo++)
		add_side(sides, shard_list_name(&l->list, l->side[lo].object),
			ctl_listing_object(l, l->side[lo].object));
	if (mask >= 0) {
		const char *root = l->masks->list.root;
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%s%s%s", root, *root ? "/" : "", name);
		add_side(sides, path, ctl_listing_object(l->masks, (uint64_t)mask));
	}
	return sides;
}

/* ---- opening ---- */

/* Chooses the shards that the URL means; @name: below the root, "": all of them. */
static bool choose(struct ctl_listing *l, const char *name, struct fault *fault)
{
	int64_t one;

	l->files = l->list.count;
	if (!*name)
		return l->files > 0 ||
		       fault_set(fault, FAULT_ARGUMENT, "",
			       "contains no shards; must be the prefix of their keys");
	one = shard_list_find(&l->list, name);
	l->file = (uint64_t)one;
	l->files = 1;
	if (one >= 0)
		return true;
	return fault_set(fault, FAULT_ARGUMENT, "",
		"is not in the store, or is a shard's side file; must be a shard, or a prefix of "
		"keys with a '/' at its end");
}

/* Fills the members for @url. *@name: the rest of its key after the last '/'. */
static bool set_root(struct ctl_listing *l, struct reading *r, struct stores *stores,
	const char *url, const char **name)
{
	const char *key;

	*l = (struct ctl_listing){.objects = {.stores = stores, .find = find_object, .context = l}};
	l->bucket = store_bucket(stores, url, &key, r->fault);
	if (!l->bucket)
		return false;
	*name = strrchr(key, '/') ? strrchr(key, '/') + 1 : key;
	l->key_bytes = (size_t)(*name - key);
	r->prefix = strndup(key, l->key_bytes);
	l->list.root = strndup(url, (size_t)(*name - url) - ((*name)[-1] == '/'));
	return (r->prefix && l->list.root) || fault_memory(r->fault);
}

static bool see_one(void *context, const struct object *object)
{
	(void)object;
	*(bool *)context = true;
	return false;
}

/*
 * Refuses the name of a directory, before all that is next to it is listed: perhaps the whole
 * bucket.
 */
static bool is_no_directory(struct reading *r, struct stores *stores, const char *name)
{
	bool any = false, fine;
	char *prefix;

	if (!*name)
		return true;
	if (asprintf(&prefix, "%s%s/", r->prefix, name) < 0)
		return fault_memory(r->fault);
	fine = store_list(stores, r->l->bucket, prefix, see_one, &any, r->fault);
	free(prefix);
	return fine && (!any || fault_set(r->fault, FAULT_ARGUMENT, "",
					"is a prefix of keys; write it with a '/' at its end"));
}

static bool list(struct reading *r, struct stores *stores, const char *url)
{
	struct fault fault;
	bool fine;

	r->fault->code = FAULT_NONE;
	ctl_progress_count(&r->progress, url, "keys", 0);
	fine = store_list(stores, r->l->bucket, r->prefix, take, r, &fault);
	ctl_progress_end(&r->progress);
	if (!fine)
		*r->fault = fault;
	return r->fault->code == FAULT_NONE;
}

static bool end(struct reading *r, bool fine)
{
	free(r->prefix);
	if (!fine)
		ctl_listing_close(r->l);
	return fine;
}

bool ctl_listing_open(struct ctl_listing *l, struct stores *stores, const char *url,
	const struct ctl_listing *masks, struct fault *fault)
{
	struct reading r = {.l = l, .fault = fault};
	const char *name;
	bool fine = set_root(l, &r, stores, url, &name) && is_no_directory(&r, stores, name) &&
		    list(&r, stores, url) && shard_list_split(&l->list, &l->sides, fault) &&
		    choose(l, name, fault) && find_owners(l, fault);

	l->masks = masks;
	return end(&r, fine);
}

/* ---- servers without listings ---- */

struct asking {
	struct reading *r;
	const struct shard_list *names;
};

/* Asks for one object. One that is not there is no fault. */
static bool ask(const struct parallel *p, struct fault *fault)
{
	const struct asking *a = p->context;
	const struct ctl_listing *l = a->r->l;
	const char *name = shard_list_name(a->names, p->i);
	char etag[STORE_ETAG_BYTES], *key;
	struct object object = {.etag = etag};
	bool there, fine;

	if (asprintf(&key, "%s%s", a->r->prefix, name) < 0)
		return fault_memory(fault);
	there = store_head(l->objects.stores, l->bucket, key, &object.size, etag, fault);
	free(key);
	if (!there && fault->code != FAULT_CHANGED)
		return false;
	ctl_progress_add(&a->r->progress, 1);
	if (!parallel_turn(p))
		return true;
	fine = !there || add(a->r, name, &object, fault);
	if (fine)
		parallel_pass(p);
	return fine;
}

bool ctl_listing_ask(struct ctl_listing *l, struct stores *stores, const char *url,
	const struct shard_list *names, struct fault *fault)
{
	struct reading r = {.l = l, .fault = fault};
	struct asking a = {&r, names};
	const char *name;
	bool fine = set_root(l, &r, stores, url, &name);

	if (fine) {
		ctl_progress_count(&r.progress, url, "objects", names->count);
		fine = parallel_for(names->count, CTL_GETS, ask, &a, fault) == names->count;
		ctl_progress_end(&r.progress);
	}
	fine = fine && shard_list_split(&l->list, &l->sides, fault) && find_owners(l, fault);
	l->files = l->list.count;
	return end(&r, fine);
}

void ctl_listing_close(struct ctl_listing *l)
{
	shard_list_free(&l->list);
	free(l->side);
	l->side = NULL;
}
