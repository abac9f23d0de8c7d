/*
 * Finds cursors in checkpoints by their first bytes: in torch.save() files, in the files of a
 * torch.distributed.checkpoint directory, and in JSON. A cursor may be there as it is, as the text
 * of a pickle (its bytes as UTF-8), in hex or base64. The files are mapped.
 */
#ifndef TOKEND_CTL_CURSOR_SCAN_H
#define TOKEND_CTL_CURSOR_SCAN_H

#include "proto/cursor.h"

/* A cursor and the first place where it was found. */
struct cursor_found {
	struct cursor cursor;
	void *bytes; /* [n] */
	size_t n;
	char *path;
	uint64_t offset; /* in the file */
	uint64_t more;	 /* other places with the same cursor */
};

struct cursor_scan {
	struct cursor_found *found; /* [n], in the order of files and offsets */
	unsigned n;
	uint64_t files, bytes; /* searched */
	uint64_t damaged;      /* places that begin like a cursor, with a wrong checksum */
};

/* Searches the file @path, or all files below the directory @path. False after an error was
 * printed. Call cursor_scan_free() either way. */
bool cursor_scan(struct cursor_scan *scan, const char *path);
void cursor_scan_free(struct cursor_scan *scan);

#endif
