/* What `tokctl pack` writes. */
#ifndef TOKEND_CTL_PACK_FORMAT_H
#define TOKEND_CTL_PACK_FORMAT_H

#include "client/ctl/common/progress.h"
#include "proto/fault.h"

#include <stddef.h>
#include <stdint.h>

enum pack_format { PACK_FLAT, PACK_ZSTD, PACK_MEGATRON, PACK_FORMATS };

struct pack_format_names {
	const char *name, *endings[3]; /* of --format; of files that are recognised as such */
	const char *ending;	       /* of the files that are written */
};

extern const struct pack_format_names pack_formats[PACK_FORMATS];

struct pack_how {
	enum pack_format format;
	uint32_t token_bytes;
	int level;
	uint32_t frame_bytes;
	struct ctl_progress *progress;
};

struct pack_result {
	uint64_t bytes;	    /* of the file */
	uint64_t documents; /* PACK_MEGATRON */
	uint64_t digest;    /* as of ctl_scan() */
};

/* Does @text end in @ending, with something before it? */
bool pack_ends(const char *text, const char *ending);
/* The file next to @path with .idx in place of .bin; @path ends so. */
void pack_idx_path(const char *path, char *idx, size_t idx_bytes);
/* A system call on @path failed with @error. Always false. */
bool pack_fail(struct fault *fault, const char *path, int error);
/* Writes all @n bytes at @at. False: errno is set. */
bool pack_write(int fd, const void *from, size_t n, uint64_t at);

#endif
