/*
 * One file of `tokctl inspect`, in three steps: it is found in the config, read, which any thread
 * may do, and reported in the order of the names.
 */
#ifndef TOKEND_CTL_INSPECT_FILE_H
#define TOKEND_CTL_INSPECT_FILE_H

#include "client/ctl/common/progress.h"
#include "client/ctl/offline/input.h"
#include "client/ctl/offline/inspect_listed.h"
#include "client/ctl/offline/inspect_report.h"
#include "client/ctl/offline/listing.h"
#include "client/ctl/offline/manifest.h"

/* The command, and what was seen so far. */
struct inspect {
	struct ctl_out out;
	struct ctl_input input;
	struct stores *stores; /* NULL: no path is a URL */
	bool json, deep, faults;
	_Atomic uint64_t sampled;      /* flat shards seen, of which the first ones were sampled */
	struct ctl_manifest *manifest; /* or NULL */
	uint32_t sums_piece;	       /* > 0: the manifest gets sums of pieces of so many bytes */
	struct cache *cache;	       /* of the last directory; NULL: none yet */
	const struct manifest *from;   /* that the shards must agree with; NULL: their dataset's */
	const struct ctl_listing *listing;	 /* of the path, in a store; otherwise NULL */
	const struct ctl_listing *masks;	 /* of the dataset of the path; or NULL */
	unsigned threads;			 /* that read one shard; 0: one per processor */
	const char *first;			 /* the first shard of the dataset or path */
	const struct shard_format *first_format; /* its format; NULL: no shard yet */
	const struct listed *first_in;		 /* its dataset; NULL: the path itself */
	bool mixed;				 /* a shard of another format was reported */
	struct ctl_progress progress;
	bool alone; /* the path has one shard */
	struct listed_all all;
};

struct inspected {
	const char *path; /* as the user would write it */
	const char *name; /* in a manifest */
	int64_t object;	  /* its number in the listing, or -1 */
	struct report report;

	/* how it is read */
	struct listed *listed; /* NULL: in no dataset of the config */
	int64_t number;	       /* in the dataset; -1: not known */
	struct ctl_input input;
	char mask[PATH_MAX];
	char by[PATH_MAX]; /* the path to open */

	/* what was read */
	struct shard *shard; /* NULL: @fault */
	int fd;
	uint64_t size, digest;
	uint64_t *sums; /* of its pieces; NULL: none */
	struct fault fault;
};

/* @absolute: the same file as @path, to find its dataset. */
void inspect_begin(struct inspect *in, struct inspected *f, const char *path, const char *absolute,
	const char *name);
/* Opens and reads it. Any thread. */
void inspect_read(struct inspect *in, struct inspected *f);
/* Compares it with the files before it, prints its report, adds it to the manifest, closes it. */
void inspect_end(struct inspect *in, struct inspected *f);
/* Closes one that is not reported. */
void inspect_close(struct inspected *f);
/* Reports a path that could not be listed or read. */
void inspect_unread(struct inspect *in, const char *path, const char *text);

#endif
