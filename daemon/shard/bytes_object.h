/* Objects in a store as sources of bytes. */
#ifndef TOKEND_SHARD_BYTES_OBJECT_H
#define TOKEND_SHARD_BYTES_OBJECT_H

#include "daemon/shard/ahead.h"
#include "daemon/shard/bytes.h"

/* A hash of an object's size and ETag, for what bytes_id() is of a file; never 0. */
uint32_t bytes_object_id(const struct object *object);
/*
 * Opens the object at the URL @path, without a GET. @ahead is shared. *@b is NULL if @objects has
 * no such object. False: out of memory, in @fault.
 */
bool bytes_object_open(const struct objects *objects, const char *path, struct ahead *ahead,
	struct bytes **b, struct fault *fault);

#endif
