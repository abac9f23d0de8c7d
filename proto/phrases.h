/*
 * Phrases of messages that several files share, each defined once.
 *
 * A phrase is a string literal: join it with the rest of the format. The comment after a phrase
 * with conversions names its arguments; such phrases need <inttypes.h>.
 */
#ifndef TOKEND_PHRASES_H
#define TOKEND_PHRASES_H

/* Problems. */
#define PHRASE_MEMORY	       "out of memory"
#define PHRASE_MISSING	       "missing or of the wrong type"
#define PHRASE_TWICE	       "is given twice"
#define PHRASE_NOT_INTEGER     "is not an integer"
#define PHRASE_NOT_FILE	       "is not a regular file"
#define PHRASE_CHANGED	       "changed while it was being read"
#define PHRASE_CHANGED_OPENING "changed while the shard was being opened"
/* The name of the stream. */
#define PHRASE_EPOCHS "stream %s has epochs, so its datasets have no weights"
/* uint64_t: the run's position; int: LIMIT_BLOCK */
#define PHRASE_NO_BLOCK                                                                            \
	"the run is at %" PRIu64 ": no block of %d is left below 2^64 for another mix"

/* Problems with their correction. */
#define PHRASE_INIT  "init is a command of Python: python -m tokend init [PATH...]"
#define PHRASE_RANGE "%" PRIu64 "; must be 1 to %" PRIu64 /* uint64_t: the number; the most */
#define PHRASE_MULTIPLE                                                                            \
	"%" PRIu64 " is not a multiple of %d; use %" PRIu64 /* uint64_t; int; uint64_t */

/* Corrections, after "must be". */
#define PHRASE_UINT64 "an integer below 2^64"
#define PHRASE_WEIGHT "a finite number ≥ 0"
#define PHRASE_LABEL  "a name of 1 to 64 bytes, without control characters"
#define PHRASE_NAME   "a name of 1 to 64 bytes, without '/', control characters or a leading dot"

/* Corrections, after a semicolon. */
#define PHRASE_WEIGHTS	   "give at least one dataset a weight above 0"
#define PHRASE_ALL_OR_NONE "all shards of a dataset must have one, or none"
#define PHRASE_RESTORE	   "restore the shard (with cp -p, or reload), then attach at the cursor"
#define PHRASE_RELEASE	   "install client and daemon of the same release"
#define PHRASE_START	   "start one with tokend -c FILE, or give its socket"
#define PHRASE_DENIED	   "have its owner allow that, or give another socket"
#define PHRASE_NOFILE	   "raise LimitNOFILE (ulimit -n)"
#define PHRASE_SLOTS	   "use fewer slots or a smaller micro_batch"
#define PHRASE_NOT_SHARD   "move it away, or set a pattern that matches only the shards"

#endif
