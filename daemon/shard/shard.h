/*
 * Open shards: to describe a file, whatever its format, and to read its tokens.
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
	struct shard *next;	   /* whoever's it is */
};

/* The width that stored tokens are served in: 2 for up to 2 bytes, otherwise 4, or what the config
 * says of 8-byte ones; at least hint->token_bytes. */
uint32_t shard_served(enum shard_type type, const struct shard_hint *hint);
/* What sample_tokens are to whom a window is as long as @hint says. */
uint64_t shard_sample(const struct shard_facts *facts, const struct shard_hint *hint);

/*
 * Recognises (@format NULL) or takes @format's word, and describes, from an open file. Returns the
 * format, or NULL with one line in @fault that says what to do, without the path. Keeps nothing.
 */
const struct shard_format *shard_describe(const struct shard_format *format, const char *path,
	int fd, const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault);
/* Opens what was described, to read from it. @fd stays the caller's and must outlive the shard.
 * NULL: @fault.
 */
struct shard *shard_open(const struct shard_format *format, const char *path, int fd,
	const struct shard_hint *hint, const struct shard_facts *facts, struct fault *fault);
void shard_close(struct shard *shard);
/* Other files that an open shard goes on reading. Returns how many, at most SHARD_SIDES. */
enum { SHARD_SIDES = 2 };
struct shard_side {
	int fd;		  /* the shard's */
	uint32_t id;	  /* bytes_id() of it when it was opened */
	const char *what; /* "its index: " */
};
unsigned shard_sides(const struct shard *shard, struct shard_side *side);
/*
 * Tokens [token, token + n) into @to, in the served width, native byte order. False: *@error is an
 * errno (ERANGE: a token that does not fit the served width, negative ones included; EBADMSG:
 * damaged; EIO, …) and
 * @fault one line without the path. Any thread; several at once.
 */
bool shard_read(
	const struct shard *shard, uint64_t token, uint64_t n, void *to, struct fault *fault);
/*
 * Where reading from a token on begins. To find it costs a wait for memory, and no I/O: so it is
 * found for all windows that are about to be read, before the first of them is, and the waits are
 * one.
 */
struct shard_place {
	uint64_t token;
	uint64_t byte, tokens; /* so many in a row from there on; 0: shard_try() looks itself */
};
struct shard_place shard_find(const struct shard *shard, uint64_t token);
/*
 * shard_read() from @place on if it takes no waiting: the page cache holds it, or it is decoded.
 * False: it does not, or there is anything else about it: shard_read() tells; @to may have been
 * written to. For a thread that may not block; the shard's file must know RWF_NOWAIT.
 */
bool shard_try(const struct shard *shard, struct shard_place place, uint64_t n, void *to);
/*
 * Document boundaries b with token < b < token + n, ascending, as offsets from @token, at most @max
 * of them. Their number, or -1 with @fault. 0 also where facts.documents is SHARD_UNKNOWN: neither
 * the format nor a list of bounds knows any.
 */
int64_t shard_documents(const struct shard *shard, uint64_t token, uint64_t n, uint32_t *at,
	uint32_t max, struct fault *fault);
/*
 * The least document boundary > @token (< facts.tokens), at most facts.tokens, which is one; or 0
 * with @fault. Only where facts.documents is not SHARD_UNKNOWN.
 */
uint64_t shard_boundary(const struct shard *shard, uint64_t token, struct fault *fault);
/*
 * A byte each for tokens [token, token + n) into @to: 1 where it may be a label, 0 where the mask
 * says that it must not or where it is in no document. The hint asked for loss_mask. As
 * shard_read() says.
 */
bool shard_loss_mask(
	const struct shard *shard, uint64_t token, uint64_t n, uint8_t *to, struct fault *fault);

#endif
