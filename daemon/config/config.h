/* The config file: YAML to struct. It does not open shards; daemon/catalog/catalog.h does. */
#ifndef TOKEND_CONFIG_H
#define TOKEND_CONFIG_H

#include "proto/cursor.h"
#include "proto/fault.h"
#include "proto/limits.h"
#include "proto/nearest.h"
#include "proto/order.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum config_io { CONFIG_IO_AUTO, CONFIG_IO_URING, CONFIG_IO_PREAD };
/* How a dataset in a store is read: one range per window, or pieces through the cache. */
enum config_fetch { CONFIG_FETCH_AUTO, CONFIG_FETCH_WINDOW, CONFIG_FETCH_PIECE };
/* Where a bucket's name is written: in the host or in the path. AUTO: url_text.c. */
enum config_style { CONFIG_STYLE_AUTO, CONFIG_STYLE_VIRTUAL, CONFIG_STYLE_PATH };

enum { CONFIG_SCHEME_BYTES = 32 };

/* An entry of `stores:`: what the environment does not say. It contains no secret. */
struct config_store {
	char name[CONFIG_SCHEME_BYTES]; /* the scheme of its URLs */
	char *endpoint;			/* "https://minio.lab:9000", checked; NULL: not given */
	char *region;			/* NULL: not given */
	char *profile;			/* section of the shared AWS files; NULL: not given */
	char *token_file;		/* absolute; a bearer token; NULL: not given */
	char *query_file;		/* absolute; a query that each URL gets; NULL: not given */
	char *ca; /* absolute; certificates instead of the system's; NULL: not given */
	enum config_style style;
	bool anonymous, requester_pays;
	uint32_t connections; /* most GETs in flight */
};

struct config_dataset {
	char name[LIMIT_NAME_BYTES + 1];
	char *path;	      /* absolute, or a URL (url_text.h) */
	char *manifest;	      /* likewise; NULL: not given */
	char *format;	      /* "auto" or a format's name */
	uint32_t token_bytes; /* of `dtype:`; 2 unless given */
	bool has_dtype;
	char *column;	     /* of MDS and Arrow; NULL: not given */
	char *label_mask;    /* directory of loss masks, as path; NULL: not given */
	double weight;	     /* 1 unless given */
	uint64_t lo, hi;     /* of `part:`, in 1 / ORDER_UNITS; 0 and ORDER_UNITS: the whole */
	uint64_t max_epochs; /* 0: no limit */
	bool has_weight;
	enum order_shuffle shuffle;
	uint32_t block, group;
	bool slide;
	enum config_fetch fetch;
	uint32_t piece; /* bytes; a power of two */
	int line;	/* of the dataset, and of keys that are not given */
	int path_line, manifest_line, weight_line, format_line, max_epochs_line, slide_line,
		label_mask_line, fetch_line, piece_line, part_line;
};

struct config_stream {
	char name[LIMIT_NAME_BYTES + 1];
	uint64_t seed, seq_len, extra, stride;
	uint64_t epochs, samples; /* 0: endless */
	bool has_eos, has_vocab;
	bool documents; /* with annotations: document starts */
	bool loss_mask; /* with annotations: loss mask */
	uint64_t eos, vocab;
	struct config_dataset *dataset;
	uint32_t datasets;
	struct cursor_step *step; /* [steps] of `schedule:`; a dataset that is not named has 0 */
	int *step_line;		  /* [steps] */
	uint32_t steps;
	int line, schedule_line; /* without a schedule, schedule_line is the stream's */
	int eos_line, documents_line;
};

struct config {
	char *path;
	char *text; /* the file's bytes, for a reload */
	size_t text_bytes;
	uint64_t digest; /* order_checksum() of the text: equal files, equal digests */
	char *directory; /* of the file: relative dataset paths start here */
	char *socket;	 /* absolute */
	char *state_dir; /* absolute; state_place() may choose another one */
	bool has_socket, has_state_dir; /* given in the file */
	uint64_t memory_bytes;
	enum config_io io;
	bool direct;
	uid_t *allow_uid;
	uint32_t allow_uids;
	uid_t *admin_uid; /* may change every run, as root may */
	uint32_t admin_uids;
	struct config_stream *stream;
	uint32_t streams;
	struct config_store *store; /* [stores]; s3, gs and https may be missing */
	uint32_t stores;
	char *cache_dir; /* absolute; NULL: no cache */
	uint64_t cache_bytes;
	int cache_line;
};

/* Size of the cache of decoded frames, for all datasets together; also the largest decoded size of
 * a frame. */
static inline uint64_t config_frames_budget(const struct config *config)
{
	return config->memory_bytes / 4;
}

/*
 * Reads the file at @path. Owned by the caller. On failure returns NULL and sets @fault; its text
 * is the whole line that users see. Defaults are in the tables of keys (schema.h).
 */
struct config *config_load(const char *path, struct fault *fault);
/* The same with its text from @fd, which it closes. */
struct config *config_load_from(int fd, const char *path, struct fault *fault);
void config_free(struct config *config);
/*
 * Writes the absolute path that names the config at @path: equal for all names of one file in one
 * directory. A link to a file elsewhere keeps its own, because relative paths in the config start
 * at the link's directory. False: it does not exist.
 */
bool config_whole(const char *path, char whole[PATH_MAX]);
/* Directory number @i of the places of state (proto/place.h), of this process's environment. Owned
 * by the caller. NULL: it does not exist. */
char *config_state_place(const struct config *config, unsigned i);
/* Whether this user may write to directory @path, or create it. False: errno. */
bool config_may_write(const char *path);
const struct config_stream *config_stream(const struct config *config, const char *name);
/* The entry of `stores:` for a scheme. NULL: there is none. @config may be NULL. */
const struct config_store *config_store(const struct config *config, const char *scheme);
/* Writes the streams' names and the one that @name may mean, see nearest_list(). Returns @list. */
char *config_list_streams(
	const struct config *config, const char *name, char list[NEAREST_LIST_BYTES]);

/* ---- faults of the file ---- */

/*
 * Sets @fault (FAULT_ARGUMENT) for a value that cannot be used. Its text is the whole line that
 * users see, "FILE:LINE: FIELD: TEXT". Always false.
 */
__attribute__((format(printf, 5, 6))) bool config_refuse(
	struct fault *fault, const char *file, int line, const char *field, const char *text, ...);
/* The same for a failed allocation: FAULT_MEMORY. Always false. */
bool config_refuse_memory(struct fault *fault, const char *file, int line, const char *field);

#endif
