/*
 * Shards in a store (daemon/store/store.h). The path of such a shard is its URL, so names of side
 * files and messages are those of local shards, and there is no descriptor.
 */
#ifndef TOKEND_SHARD_OBJECTS_H
#define TOKEND_SHARD_OBJECTS_H

#include "daemon/store/store.h"

/*
 * How shards and side files are found. Nothing is probed for: a store may answer 403 for a missing
 * key, and a key that was added later must not change a dataset.
 */
struct objects {
	struct stores *stores;
	/* Fills @object; its strings live as long as @context. False: there is no such object. */
	bool (*find)(const void *context, const char *url, struct object *object);
	const void *context;
	/*
	 * Sizes and ETags come from a manifest, so the store returns the bytes that `tokctl
	 * inspect` checked. Checks of whole shards are not repeated.
	 */
	bool inspected;
};

#endif
