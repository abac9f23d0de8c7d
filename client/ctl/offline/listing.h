/*
 * The shards and side files below a prefix of a store, from a listing of its keys, by the rules of
 * a walk through a directory (daemon/shard/list.h).
 */
#ifndef TOKEND_CTL_LISTING_H
#define TOKEND_CTL_LISTING_H

#include "daemon/shard/list.h"
#include "daemon/shard/objects.h"

#include <stdio.h>

struct ctl_listing {
	struct objects objects; /* for struct shard_hint; finds those of the listing */
	const struct store_bucket *bucket;
	struct shard_list
		list; /* shards, then `sides` side files; root: a URL without a last '/' */
	uint64_t sides;
	size_t key_bytes;		 /* of the root's key, which begins those of all objects */
	uint64_t file, files;		 /* the shards that the URL means */
	struct ctl_listing_side *side;	 /* [sides], by owner */
	const struct ctl_listing *masks; /* the directory label_mask; or NULL */
};

struct ctl_listing_side {
	int64_t owner; /* the shard; -1: no shard needs it */
	uint64_t object;
};

/*
 * Lists the shards at @url: a prefix that ends in '/', or one object. @masks is kept, or NULL.
 * Shows how many keys were found. False: @fault, which names URL and key; nothing is to be closed
 * then.
 */
bool ctl_listing_open(struct ctl_listing *l, struct stores *stores, const char *url,
	const struct ctl_listing *masks, struct fault *fault);
/*
 * The same for @url, a directory of a server that has no listings: asks for each of @names, the
 * shards and side files that should be there. Those that are not there are left out.
 */
bool ctl_listing_ask(struct ctl_listing *l, struct stores *stores, const char *url,
	const struct shard_list *names, struct fault *fault);
void ctl_listing_close(struct ctl_listing *l);
/* The object with number @i, a shard or a side file. Its strings belong to the listing. */
struct object ctl_listing_object(const struct ctl_listing *l, uint64_t i);
/* Is @url on a server that has no listings? */
bool ctl_listing_none(const char *url);
/* Can an object with this ETag be listed in a manifest? False: what is wrong, in @text. */
bool ctl_listing_etag_ok(const char *etag, char *text, size_t text_bytes);
/* Writes the manifest's member `side` of a shard, as text: "" if it has no side files. */
void ctl_listing_put_side(const struct ctl_listing *l, uint64_t shard, FILE *out);
/* The number of the object called @name (relative path), or -1. */
int64_t ctl_listing_find(const struct ctl_listing *l, const char *name);

#endif
