/*
 * `tokctl inspect`: each shard is found in the config, read, which any thread may do, and reported
 * in the order of the names. Errors are reported, and counted in inspect.faults.
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
	struct ctl_manifest *manifest; /* to be written; or NULL */
	struct ctl_progress progress;

	/* the path that is read */
	struct ctl_place place;
	struct ctl_listing masks; /* of the dataset of the path */
	bool has_masks;
	const struct manifest *from;		 /* that the shards must agree with; NULL: their
						    dataset's */
	unsigned threads;			 /* that read one shard */
	const char *first;			 /* the first shard of the dataset or path */
	const struct shard_format *first_format; /* its format; NULL: no shard yet */
	const struct listed *first_in;		 /* its dataset; NULL: the path itself */
	bool mixed;				 /* a shard of another format was reported */
	_Atomic uint64_t sampled; /* flat shards seen, of which the first ones were sampled */
};

enum { INSPECT_PROBLEMS = 4 }; /* of a shard; further ones are dropped */

/* A shard. */
struct inspected {
	char path[PATH_MAX + 1]; /* as the user would write it */
	const char *name;	 /* in a manifest */
	int64_t object;		 /* its number in the listing, or -1 */

	/* how it is read */
	struct listed *listed; /* NULL: in no dataset of the config */
	int64_t number;	       /* in the dataset; -1: not known */
	struct ctl_input input;
	char mask[PATH_MAX];
	char by[PATH_MAX + 1]; /* the path to open */

	/* what was read */
	struct shard *shard; /* NULL: @fault */
	int fd;
	uint64_t size, digest;
	struct fault fault;
	struct shard_facts facts;
	uint64_t windows, unserved; /* of the stream; unserved: tokens in no window */
	bool scanned;
	uint64_t most;	 /* the largest token, if scanned */
	bool has_mask;	 /* there is a loss mask, or a list of bounds that leaves tokens out */
	uint64_t masked; /* number of tokens that may not be labels, if has_mask and scanned */
	unsigned problems;
	char problem[INSPECT_PROBLEMS][PATH_MAX + 512];
};

/* The dataset that contains the file @path, and its number there in *@shard (-1: not known). Of
 * several, the first with a label_mask, otherwise the first. NULL: none. */
struct listed *inspect_listed(const struct inspect *in, const char *path, int64_t *shard);
/* Reads and reports all shards of in->place. */
void inspect_place(struct inspect *in);
/* Reports a path that could not be listed or read. */
void inspect_unread(struct inspect *in, const char *path, const char *text);
/*
 * Adds the lines of the manifest @from to in->manifest, with size and ETag of the objects below
 * @url. Reads no shard; with in->deep, it reads all, and compares them with @from. Reports each
 * object that is missing, differs, or is not in @from.
 */
void inspect_from(struct inspect *in, const char *from, const char *url);

#endif
