/* The formats that `tokctl pack` writes, and helpers to write files. */
#ifndef TOKEND_CTL_PACK_FORMAT_H
#define TOKEND_CTL_PACK_FORMAT_H

#include "client/ctl/common/progress.h"
#include "proto/fault.h"

#include <stddef.h>
#include <stdint.h>

enum pack_format { PACK_FLAT, PACK_ZSTD, PACK_MEGATRON, PACK_FORMATS };

struct pack_format_names {
	const char *name;	/* for --format */
	const char *endings[3]; /* an OUT that ends so is one file */
	const char *ending;	/* of the files in a directory */
};

extern const struct pack_format_names pack_formats[PACK_FORMATS];

struct pack_how {
	enum pack_format format;
	uint32_t token_bytes;
	uint32_t row_tokens; /* --fit: documents are packed into rows; 0: tokens stay in order */
	int level;
	uint32_t frame_bytes;
	struct ctl_progress *progress;
};

struct pack_result {
	uint64_t bytes;	    /* of the file */
	uint64_t documents; /* PACK_MEGATRON, or --fit: of the inputs */
	uint64_t digest;    /* like ctl_scan()'s */
	uint64_t padding;   /* the rest is of --fit; tokens */
	uint64_t cut;	    /* documents longer than a row */
	uint64_t split;	    /* documents that windows of a row's length would cut without --fit */
};

/* Does @text end in @ending, with something before it? */
bool pack_ends(const char *text, const char *ending);
/* Whether files have a side file. Sets @side to that of @path. */
bool pack_side_path(const struct pack_how *how, const char *path, char *side);
/* Fills in @fault: a system call on @path failed with @error. Always false. */
bool pack_fail(struct fault *fault, const char *path, int error);
/* Writes all @n bytes at offset @at. False: errno is set. */
bool pack_write(int fd, const void *from, size_t n, uint64_t at);

#endif
