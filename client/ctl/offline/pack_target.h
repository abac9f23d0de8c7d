/*
 * Where `tokctl pack` writes: a file, or a directory with its state.
 *
 * In a directory, an interrupted run is continued: the first line of DIR/.pack says what is being
 * made of what, the lines below it which files are finished. Each file is written as a dot file and
 * renamed when it has been read back. Its line is written before the rename, so a file without a
 * line is not ours.
 */
#ifndef TOKEND_CTL_PACK_TARGET_H
#define TOKEND_CTL_PACK_TARGET_H

#include "client/ctl/offline/pack_format.h"

struct pack_done {
	bool is;
	struct pack_result result;
};

struct pack_target {
	const char *path;
	bool single; /* @path is a file */
	enum pack_format format;
	uint64_t shards;
	uint64_t digest; /* of what is to be made, of what: a run does not continue another */
	int state;	 /* DIR/.pack, locked; -1 */
};

/* Makes or opens the directory and reads which shards are @done already; a single file must not
 * exist yet. Nothing is overwritten. */
bool pack_target_open(struct pack_target *t, struct pack_done *done, struct fault *fault);
/* @path: where shard @i goes; @part: where it is until it is complete. PATH_MAX each. */
bool pack_target_name(
	const struct pack_target *t, uint64_t i, char *path, char *part, struct fault *fault);
/* Shard @i is complete: written down before it is renamed. */
bool pack_target_note(const struct pack_target *t, uint64_t i, const struct pack_result *result,
	struct fault *fault);
/* Makes the rename of @path durable. */
bool pack_target_sync(const char *path, struct fault *fault);
/* All shards are there: removes the state. */
bool pack_target_end(const struct pack_target *t, struct fault *fault);
void pack_target_close(struct pack_target *t);

#endif
