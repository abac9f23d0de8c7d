/*
 * The output of `tokctl pack`: a file, or a directory with its state.
 *
 * In a directory, an interrupted run is continued. The first line of DIR/.pack identifies inputs
 * and options; each further line is a finished file. A file is written under a dot name and renamed
 * after it was read back. Its line is written before the rename, so a file without a line is
 * someone else's.
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
	const struct pack_how *how;
	uint64_t shards;
	uint64_t digest; /* of inputs and options: a run continues only one with the same */
	int state;	 /* DIR/.pack, locked; -1: not open */
};

/* Creates or opens the directory, and sets which shards are @done ([shards]). A single file must
 * not exist yet. Nothing is overwritten. pack_target_close() is needed either way. */
bool pack_target_open(struct pack_target *t, struct pack_done *done, struct fault *fault);
/* Sets @path to the name of shard @i, and @part to its name until it is complete. PATH_MAX each. */
bool pack_target_name(
	const struct pack_target *t, uint64_t i, char *path, char *part, struct fault *fault);
/* Notes in the state that shard @i is complete. Call it before the rename. */
bool pack_target_note(const struct pack_target *t, uint64_t i, const struct pack_result *result,
	struct fault *fault);
/* Makes the rename of @path durable. */
bool pack_target_sync(const char *path, struct fault *fault);
/* Removes the state, after all shards are complete. */
bool pack_target_end(const struct pack_target *t, struct fault *fault);
void pack_target_close(struct pack_target *t);

#endif
