/*
 * The configuration file: YAML to struct, nothing else. It touches no shard; see dataset.h for
 * that.
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
	int line; /* of the dataset; also the others where their key is not given */
	int path_line, manifest_line, weight_line, format_line, max_epochs_line, slide_line,
		label_mask_line;
};

/* A change of the mix that was planned ahead: at once (from = to, one step), or a ramp. See
 * proto/cursor.h.
 */
struct config_step {
	uint64_t from, to;
	uint32_t steps;
	double *weights; /* [datasets] of the stream; those that are not named have 0 */
	int line;
};

struct config_stream {
	char name[LIMIT_NAME_BYTES + 1];
	uint64_t seed, seq_len, extra, stride;
	uint64_t epochs, samples; /* 0: not finite */
	bool has_eos, has_vocab;
	bool documents; /* slots say where documents begin */
	bool loss_mask; /* and which tokens may be labels */
	uint64_t eos, vocab;
	struct config_dataset *dataset;
	uint32_t datasets;
	struct config_step *step; /* `schedule:`, ascending */
	uint32_t steps;
	int line, schedule_line; /* the stream's own where it has no schedule */
	int eos_line, documents_line;
};

struct config {
	char *path;
	char *directory;		/* of the file: relative dataset paths start here */
	char *socket;			/* absolute */
	char *state_dir;		/* absolute */
	bool has_socket, has_state_dir; /* the file names them: they are not the defaults */
	char *metrics;			/* HOST:PORT or NULL */
	uint64_t memory_bytes;
	bool memory_capped; /* that is what the cgroup's limit allows, less than the file says */
	enum config_io io;
	bool direct;
	uid_t *allow_uid;
	uint32_t allow_uids;
	uid_t *admin_uid; /* who may change every run, besides root */
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
/* @written is absolute, or relative to the config's directory. False: it does not fit. */
bool config_path(const struct config *config, const char *written, char *path, size_t path_bytes);
/*
 * What a private daemon (tokend --private) takes for state_dir where that is not its user's to
 * write: $XDG_STATE_HOME/tokend/CONFIG, else ~/.local/state/tokend/CONFIG, CONFIG being a number of
 * the file's path. NULL: there is no such place. Owned by the caller.
 */
char *config_user_state_dir(const struct config *config);
/* Could this user write into directory @path, which may have to be made? */
bool config_may_write(const char *path);
const struct config_stream *config_stream(const struct config *config, const char *name);

#endif
