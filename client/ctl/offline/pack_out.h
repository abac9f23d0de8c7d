/* Writes one file of `tokctl pack`. */
#ifndef TOKEND_CTL_PACK_OUT_H
#define TOKEND_CTL_PACK_OUT_H

#include "client/ctl/offline/pack_format.h"
#include "client/ctl/offline/pack_in.h"

struct pack_range {
	uint64_t begin, end; /* tokens */
};

/*
 * Writes the tokens of @range, or the rows that --fit packs from them, to @part, which is replaced,
 * and its side file; makes both durable, reads them back and compares. False: both are removed.
 */
bool pack_out(struct pack_in *in, const struct pack_how *how, struct pack_range range,
	const char *part, struct pack_result *result, struct fault *fault);
/* Renames @part and its side file to @path, which must not exist. */
bool pack_out_publish(
	const struct pack_how *how, const char *part, const char *path, struct fault *fault);
/* Removes @part and its side file, if they exist. */
void pack_out_remove(const struct pack_how *how, const char *part);

#endif
