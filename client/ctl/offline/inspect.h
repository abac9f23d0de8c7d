/*
 * `tokctl inspect` and `tokctl manifest`: each shard is found in the config, read, which any thread
 * may do, and reported in the order of the names; `manifest` also writes its line. Errors are
 * reported, and counted in inspect.faults.
 */
#ifndef TOKEND_CTL_INSPECT_H
#define TOKEND_CTL_INSPECT_H

#include "client/ctl/common/emit.h"
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/manifest.h"

/* A dataset of the config and its files, to find how a file is configured. */
struct listed {
	const struct config_stream *stream;
	const struct config_dataset *dataset;
	struct shard_list list;	  /* borrowed from the manifest if there is one */
	struct manifest manifest; /* otherwise empty */
	char *root;		  /* with links resolved, to compare with paths */
	char *first;		  /* its first file that was inspected; NULL: none yet */
	bool unlisted;		  /* in a store, without a manifest: all below @root */
	bool mask, bounds;	  /* had @first a loss mask, a list of document bounds? */
};

/* The command, and what was seen so far. */
struct inspect {
	struct emit emit;
	struct ctl_input input;
	bool deep, faults;
	struct config *config; /* NULL: none */
	struct stores *stores; /* NULL: no path is a URL */
	struct listed *listed; /* all datasets of the config */
	unsigned lists;
	FILE *manifest; /* to be written; or NULL */
	struct ctl_progress progress;

	/* the path that is read */
	struct ctl_place place;
	struct ctl_place masks; /* of the dataset of the path, if they are in a store */
	char masks_url[PATH_MAX];
	const struct manifest *from;		 /* that the shards must agree with; NULL: their
						    dataset's */
	const char *first;			 /* the first shard of the dataset or path */
	const struct shard_format *first_format; /* its format; NULL: no shard yet */
	const struct listed *first_in;		 /* its dataset; NULL: the path itself */
	bool mixed;				 /* a shard of another format was reported */
};

/* The first options of both commands. */
enum {
	INSPECT_CONFIG,
	INSPECT_FORMAT,
	INSPECT_DTYPE,
	INSPECT_COLUMN,
	INSPECT_DEEP,
	INSPECT_JSON,
	INSPECT_OPTIONS
};

#define INSPECT_CONFIG_OPTION                                                                      \
	{                                                                                          \
		OPTION_TEXT("config", "FILE",                                                      \
			"config whose datasets say how to read their shards; also counts "         \
			"windows"),                                                                \
			.letter = 'c'                                                              \
	}

/*
 * Takes the options, and opens the config and stores for the first @paths arguments. Returns an
 * exit status. inspect_end() is needed either way, and returns the command's.
 */
int inspect_begin(struct inspect *in, const struct ctl_arguments *a, int paths);
int inspect_end(struct inspect *in, int status);
/* Opens in->place and in->masks; @names as ctl_place_open(). False after a report. */
bool inspect_open(struct inspect *in, const char *path, const struct shard_list *names);
void inspect_close(struct inspect *in);
/* The dataset that contains the file @path, and its number there in *@shard (-1: not known). Of
 * several, the first with a label_mask, otherwise the first. NULL: none. */
struct listed *inspect_listed(const struct inspect *in, const char *path, int64_t *shard);

/* Reads and reports all shards of in->place. */
void inspect_place(struct inspect *in);
/* Reports a path that could not be listed or read. */
void inspect_unread(struct inspect *in, const char *path, const char *text);

/* ---- for the manifest ---- */

struct manifest_line {
	const struct shard_format *format;
	const struct shard_facts *facts;
	uint64_t size; /* of the file, in bytes */
	bool has_digest;
	uint64_t digest;
};

/* Writes the line of shard @i of in->place. False: it cannot be listed; @fault has no file name. */
bool manifest_add(
	struct inspect *in, uint64_t i, const struct manifest_line *l, struct fault *fault);

#endif
