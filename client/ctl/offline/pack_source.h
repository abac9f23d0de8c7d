/* One shard that `tokctl pack` reads: a file, or an object of a store. */
#ifndef TOKEND_CTL_PACK_SOURCE_H
#define TOKEND_CTL_PACK_SOURCE_H

#include "client/ctl/offline/input.h"
#include "client/ctl/offline/listing.h"

/* The shards of one URL. */
struct pack_place {
	struct ctl_listing listing;
	struct cache *cache; /* of files that shards share */
};

struct pack_source {
	char *path;
	const struct pack_place *place; /* NULL: a file */
	uint64_t begin, tokens;		/* its range of the row */
	uint64_t identity; /* hash of facts, and of sizes, times or ETags, of the shard and its side
			      files */
	struct shard *shard; /* NULL: not open */
	int fd;		     /* -1: an object, or not open */
	unsigned users;	     /* threads that are reading it */
	bool unindexed;	     /* it has no document bounds */
	bool opening;	     /* a thread opens it */
	bool ended;	     /* it was read to its end */
};

/* Lists the shards at @url. NULL: @fault. */
struct pack_place *pack_place_open(struct stores *stores, const char *url, struct fault *fault);
/* After all its sources are closed. NULL: does nothing. */
void pack_place_close(struct pack_place *place);

/* How a source at @place (or NULL) is read. */
struct ctl_input pack_source_input(const struct ctl_input *input, const struct pack_place *place);
/*
 * Opens s->path and sets *@identity; it must be the same each time. False: @fault, which names the
 * path; nothing is open then.
 */
bool pack_source_open(struct pack_source *s, const struct ctl_input *input, uint64_t *identity,
	struct fault *fault);
void pack_source_close(struct pack_source *s);

#endif
