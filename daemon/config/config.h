/*
 * The configuration file: YAML to struct. Shards are not looked at; see daemon/catalog/catalog.h.
 */
#ifndef TOKEND_CONFIG_H
#define TOKEND_CONFIG_H

#include "proto/fault.h"
#include "proto/limits.h"
#include "proto/order.h"

#include <sys/types.h>

enum config_io { CONFIG_IO_AUTO, CONFIG_IO_URING, CONFIG_IO_PREAD };

struct config_dataset {
	char name[LIMIT_NAME_BYTES + 1];
	char *path;	      /* as written */
	char *manifest;	      /* as written; NULL: not said */
	char *format;	      /* "auto" or a format's name */
	uint32_t token_bytes; /* of `dtype:`; 2 unless said */
	bool has_dtype;
	char *column;	     /* of MDS and Arrow; NULL: not said */
	char *label_mask;    /* directory of loss masks, as written; NULL: not said */
	double weight;	     /* 1 unless said */
	uint64_t max_epochs; /* 0: no limit */
	bool has_weight;
	enum order_shuffle shuffle;
	uint32_t block, group;
	bool slide;
	int line; /* of the dataset; those of keys that are not given are the same */
	int path_line, manifest_line, weight_line, format_line, max_epochs_line, slide_line,
		label_mask_line;
};

/* A planned change of the mix: at once (from = to, one step), or a ramp. See proto/cursor.h. */
struct config_step {
	uint64_t from, to;
	uint32_t steps;
	double *weights; /* [datasets] of the stream; 0 for those that are not named */
	int line;
};

struct config_stream {
	char name[LIMIT_NAME_BYTES + 1];
	uint64_t seed, seq_len, extra, stride;
	uint64_t epochs, samples; /* 0: not finite */
	bool has_eos, has_vocab;
	bool documents; /* annotations: where documents begin */
	bool loss_mask; /* annotations: which tokens may be labels */
	uint64_t eos, vocab;
	struct config_dataset *dataset;
	uint32_t datasets;
	struct config_step *step; /* `schedule:`, ascending */
	uint32_t steps;
	int line, schedule_line; /* schedule_line is the stream's if it has none */
	int eos_line, documents_line;
};

struct config {
	char *path;
	char *directory;		/* of the file: relative dataset paths start here */
	char *socket;			/* absolute */
	char *state_dir;		/* absolute */
	bool has_socket, has_state_dir; /* given in the file */
	char *metrics;			/* HOST:PORT or NULL */
	uint64_t memory_bytes;
	bool memory_capped; /* memory_bytes was lowered to what the cgroup's limit allows */
	enum config_io io;
	bool direct;
	uid_t *allow_uid;
	uint32_t allow_uids;
	uid_t *admin_uid; /* may change every run, as root may */
	uint32_t admin_uids;
	struct config_stream *stream;
	uint32_t streams;
};

/*
 * Reads the file at @path. Owned by the caller. NULL: @fault, whose text is the whole line that
 * users see, "FILE:LINE: FIELD: what is wrong; what would be right" (see refuse.h). Defaults:
 * socket WIRE_SOCKET, state_dir /var/lib/tokend, memory 1GiB, io auto, shuffle global, weight 1,
 * block and group 64, dtype u16, format auto, extra 1, stride seq_len.
 */
struct config *config_load(const char *path, struct fault *fault);
void config_free(struct config *config);
/* Puts the absolute path of @written, which may be relative to the config's directory, into @path.
 * False: it does not fit. */
bool config_path(const struct config *config, const char *written, char *path, size_t path_bytes);
/*
 * The state_dir of a private daemon (tokend --private) whose user may not write to the config's:
 * $XDG_STATE_HOME/tokend/CONFIG, otherwise ~/.local/state/tokend/CONFIG, where CONFIG is a hash of
 * the file's path. NULL: neither is set. Owned by the caller.
 */
char *config_user_state_dir(const struct config *config);
/* May this user write to directory @path, or make it? */
bool config_may_write(const char *path);
const struct config_stream *config_stream(const struct config *config, const char *name);

#endif
