/*
 * Describes a file of any format, opens it, and reads its tokens.
 *
 * Most formats keep their tokens in a row, in a width that can be served: those are *plain*, and
 * the daemon reads them straight into the ring. The others are gathered from their pieces and
 * converted to the served width: by shard_try() if all of it is in memory already, otherwise by
 * shard_read() in a pool thread.
 */
#ifndef TOKEND_SHARD_H
#define TOKEND_SHARD_H

#include "daemon/shard/formats.h"

/* An open shard. */
struct shard {
	const struct shard_format *format;
	struct shard_facts facts;
	struct bytes *bytes;	   /* owned */
	struct shard_index *index; /* owned; NULL where the format has none */
	struct bounds *bounds;	   /* owned; NULL where there are none */
	struct mask *mask;	   /* owned; NULL where there is none */
	struct shard *next;	   /* for its user's lists */
};

/* The width that stored tokens are served in: 2 for up to 2 bytes, otherwise 4, or what the config
 * says of 8-byte ones; at least hint->token_bytes. */
uint32_t shard_served(enum shard_type type, const struct shard_hint *hint);
/* The sample_tokens for windows as long as @hint says. */
uint64_t shard_sample(const struct shard_facts *facts, const struct shard_hint *hint);

/*
 * Describes an open file. @format NULL: recognises it first. Returns the format and fills @facts;
 * keeps nothing. NULL: @fault says what to do, without the path. FAULT_DATA: the file is at fault;
 * FAULT_IO with errno, FAULT_MEMORY.
 */
const struct shard_format *shard_describe(const struct shard_format *format, const char *path,
	int fd, const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault);
/* Opens what shard_describe() described. @fd stays the caller's and must outlive the shard. NULL:
 * @fault, likewise. */
struct shard *shard_open(const struct shard_format *format, const char *path, int fd,
	const struct shard_hint *hint, const struct shard_facts *facts, struct fault *fault);
void shard_close(struct shard *shard);
enum { SHARD_SIDES = 2 };

/* A side file that an open shard continues to read. */
struct shard_side {
	int fd;		  /* the shard's */
	uint32_t id;	  /* bytes_id() of it when it was opened */
	const char *what; /* "its index: " */
};

/* Returns how many there are, at most SHARD_SIDES. */
unsigned shard_sides(const struct shard *shard, struct shard_side *side);

/*
 * Reads tokens [token, token + n) into @to, in the served width and native byte order. Any thread;
 * several at once. False: @fault, without the path. FAULT_TOKEN: a token does not fit the served
 * width, or is negative; FAULT_DATA: damaged; FAULT_ARGUMENT: out of range; FAULT_IO with errno,
 * FAULT_MEMORY.
 */
bool shard_read(
	const struct shard *shard, uint64_t token, uint64_t n, void *to, struct fault *fault);
/*
 * Where a read begins. To find it takes a wait for memory, but no I/O. Find the places of all
 * windows before the first one is read, so that the waits overlap.
 */
struct shard_place {
	uint64_t token;
	uint64_t byte, tokens; /* tokens in a row from there on; 0: shard_try() looks itself */
};

struct shard_place shard_find(const struct shard *shard, uint64_t token);
/*
 * Like shard_read() from @place on, but only if that need not wait: the bytes are in the page cache
 * or decoded. False: they are not, or there is a fault, which shard_read() will report; @to may
 * have been written to. For threads that must not block. The file system must know RWF_NOWAIT.
 */
bool shard_try(const struct shard *shard, struct shard_place place, uint64_t n, void *to);
/*
 * Writes the document boundaries b with token < b < token + n, ascending, as offsets from @token,
 * at most @max. Returns their number, or -1: @fault. It is 0 if facts.documents is SHARD_UNKNOWN.
 */
int64_t shard_documents(const struct shard *shard, uint64_t token, uint64_t n, uint32_t *at,
	uint32_t max, struct fault *fault);
/*
 * The least document boundary > @token (< facts.tokens); facts.tokens is one. 0: @fault. Only if
 * facts.documents is not SHARD_UNKNOWN.
 */
uint64_t shard_boundary(const struct shard *shard, uint64_t token, struct fault *fault);
/*
 * Writes a byte for each of tokens [token, token + n): 1 if it may be a label, 0 if the mask
 * forbids it or it is in no document. Only if the hint asked for loss_mask. Faults as shard_read().
 */
bool shard_loss_mask(
	const struct shard *shard, uint64_t token, uint64_t n, uint8_t *to, struct fault *fault);

#endif
