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
	int level;
	uint32_t frame_bytes;
	struct ctl_progress *progress;
};

struct pack_result {
	uint64_t bytes;	    /* of the file */
	uint64_t documents; /* PACK_MEGATRON */
	uint64_t digest;    /* like ctl_scan()'s */
};

/* Does @text end in @ending, with something before it? */
bool pack_ends(const char *text, const char *ending);
/* Sets @idx to @path with .idx instead of .bin, in which @path must end. */
void pack_idx_path(const char *path, char *idx, size_t idx_bytes);
/* Fills in @fault: a system call on @path failed with @error. Always false. */
bool pack_fail(struct fault *fault, const char *path, int error);
/* Writes all @n bytes at offset @at. False: errno is set. */
bool pack_write(int fd, const void *from, size_t n, uint64_t at);

#endif
