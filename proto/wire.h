/*
 * Messages on the socket. A packet is one MessagePack map {"op": …, key: value, …}. No value is a
 * map or an array.
 *
 * From the client to the daemon (→) and back (←):
 *
 *   → hello{version, host, process?}
 *   ← hello{version}
 *   ← error{code, field, text, passing?}
 *         At any time. Then the daemon closes the connection, except after a failed checkpoint or
 *         request. passing: the same attach may succeed later, so the client retries until its
 *         deadline.
 *
 *   A trainer's session:
 *   → attach{stream, run, rank, world, micro, peer, slots, begin|position|tag|cursor,
 *         helper?, replaces?, strict?, again?}
 *   ← feed{cursor, contents, shards, end, meta_bytes, data_bytes, id?, run?} + 2 descriptors
 *         A seek attaches again. `replaces` is the id of the session that it closes afterwards;
 *         until then `memory:` counts the two rings as one. `run` is the name of an unnamed run
 *         if "default" belongs to another user. `contents`: a hash that ranks compare. `shards`: a
 *         struct wire_shards for each dataset of the cursor.
 *   ← warning{text}
 *         At any time, but only to clients that sent `process`.
 *   → checkpoint{tag, cursor}
 *   ← saved{tag, path}
 *   → describe{}
 *   ← described{cursor}                       the beginning of the stream
 *   → pending{}
 *   ← request{number, kind, args}             number 0: there is none.
 *   → answer{number, outcome, text, cursor?, from?, acts_from?}
 *
 *   An operator:
 *   → status{after, public?}
 *   ← status{after: next page or 0, args, path?}
 *         args: a page of the status, a JSON array of items (daemon/control/status.c). public:
 *         without directories, pids and hosts. path: of the config, if not public.
 *   → request{stream, run?, kind, args}
 *   ← asked{number, run, sessions}
 *   ← answer{number, outcome, waiting, run, rank, world, micro, peer, pid, host, text, same?,
 *         cursor?, from?, acts_from?}         one at a time, as they come
 *   → cancel{number}
 *   ← cancelled{number, fetched}
 *
 * Serials. A query may carry `serial`, any number but 0. Every reply to it, errors and the answers
 * to a request included, carries the same serial.
 *
 * A helper reads ahead for another session of its process. Requests go to that other session.
 *
 * Requests. A request goes to the sessions of one run. They see its number in their rings until
 * they have answered it, and any of them may fetch the rest. `waiting` is the number of sessions
 * that had neither done it nor failed when the answer was passed on; at 0 the request is over. If a
 * session ends without an answer, its answer is WIRE_GONE, unless another session of its rank and
 * peer exists (it moved to another ring). The first WIRE_DONE comes with its cursor. For later
 * ones, `same` says whether their cursor has the same bytes. cancel takes a request back if no
 * session has fetched it (fetched: 0), and so does the end of the operator's connection. A request
 * that was fetched goes on. A run has one at a time.
 *
 * A packet of one byte is a wake-up (see ring.h), in either direction, and not a message. Closing
 * the connection detaches. Unknown keys are ignored; a missing required key is an error. Texts and
 * bytes are borrowed from the packet.
 */
#ifndef TOKEND_WIRE_H
#define TOKEND_WIRE_H

#include "proto/fault.h"
#include "proto/limits.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION 1
#define WIRE_SOCKET  "/run/tokend/tokend.sock" /* the default */

enum { WIRE_SOCKET_BYTES = 108 }; /* of a socket's path, with its 0 */

/* The messages, and the keys, first those of numbers and then those of texts or bytes: each with
 * its name in a packet. */
/* clang-format off */
#define WIRE_EACH_OP(X) \
	X(HELLO, "hello") X(ATTACH, "attach") X(FEED, "feed") X(CHECKPOINT, "checkpoint") \
	X(SAVED, "saved") X(PENDING, "pending") X(REQUEST, "request") X(ASKED, "asked") \
	X(ANSWER, "answer") X(CANCEL, "cancel") X(CANCELLED, "cancelled") \
	X(DESCRIBE, "describe") X(DESCRIBED, "described") X(STATUS, "status") \
	X(ERROR, "error") X(WARNING, "warning")
#define WIRE_EACH_NUMBER(X) \
	X(VERSION_KEY, "version") X(RANK, "rank") X(WORLD, "world") X(MICRO, "micro") \
	X(PEER, "peer") X(SLOTS, "slots") X(BEGIN, "begin") X(POSITION, "position") \
	X(CONTENTS, "contents") X(END, "end") X(META_BYTES, "meta_bytes") \
	X(DATA_BYTES, "data_bytes") X(NUMBER, "number") X(AFTER, "after") X(ID, "id") \
	X(PID, "pid") X(SESSIONS, "sessions") \
	X(OUTCOME, "outcome") /* enum wire_outcome */ \
	X(WAITING, "waiting") X(FETCHED, "fetched") X(SAME, "same") \
	X(FROM, "from") /* position at which it was carried out */ \
	X(ACTS_FROM, "acts_from") X(HELPER, "helper") \
	X(PASSING, "passing") /* of an error: 1: the same attach may succeed later */ \
	X(REPLACES, "replaces") \
	X(PROCESS, "process") /* a random number that sessions of one process share; 0: none */ \
	X(PUBLIC, "public") /* of a status: without directories, pids and hosts */ \
	X(STRICT, "strict") /* 1: rejected, passing, while another process reads for this rank */ \
	X(SERIAL, "serial") /* of a query, and of every reply to it; never 0 */ \
	X(CODE, "code") /* enum fault_code of an error */ \
	X(AGAIN, "again") /* 1: the session's connection was lost */
#define WIRE_EACH_TEXT(X) \
	X(STREAM, "stream") X(RUN, "run") X(TAG, "tag") X(CURSOR, "cursor") X(PATH, "path") \
	X(KIND, "kind") X(ARGS, "args") X(FIELD, "field") X(TEXT, "text") X(HOST, "host") \
	X(SHARDS, "shards")
/* clang-format on */

#define WIRE_MEMBER(member, name) WIRE_##member,
enum wire_op { WIRE_EACH_OP(WIRE_MEMBER) WIRE_OPS };
enum wire_key {
	WIRE_EACH_NUMBER(WIRE_MEMBER) WIRE_NUMBERS,
	WIRE_BEFORE_TEXTS = WIRE_NUMBERS - 1,
	WIRE_EACH_TEXT(WIRE_MEMBER) WIRE_KEYS
};
#undef WIRE_MEMBER

/* struct wire has one bit for each key. */
_Static_assert(WIRE_KEYS <= 64, "too many keys for struct wire's bit mask");

/* The first three are sent by trainers: enum tokend_outcome. */
enum wire_outcome { WIRE_NOTED = 1, WIRE_DONE, WIRE_FAILED, WIRE_GONE };

enum { WIRE_ARGS_BYTES = 65536 }; /* of a request, with the final 0 */

#define WIRE_BIT(key) (UINT64_C(1) << (key))

struct wire_bytes {
	const char *at;
	uint32_t n;
};

struct wire {
	enum wire_op op;
	uint64_t has; /* WIRE_BIT of every key present */
	uint64_t number[WIRE_NUMBERS];
	struct wire_bytes bytes[WIRE_KEYS - WIRE_NUMBERS];
};

/* ---- building ---- */

static inline void wire_set(struct wire *w, enum wire_key key, uint64_t value)
{
	assert(key < WIRE_NUMBERS);
	w->has |= WIRE_BIT(key);
	w->number[key] = value;
}

void wire_set_text(struct wire *w, enum wire_key key, const char *text);
void wire_set_bytes(struct wire *w, enum wire_key key, const void *bytes, size_t n);
/* Writes the packet to @packet, which has room for LIMIT_PACKET_BYTES. Returns its length, or 0 if
 * it does not fit. */
size_t wire_encode(const struct wire *w, void *packet);

/* ---- reading ---- */

static inline bool wire_has(const struct wire *w, enum wire_key key)
{
	assert(key < WIRE_KEYS);
	return w->has & WIRE_BIT(key);
}

static inline uint64_t wire_number(const struct wire *w, enum wire_key key)
{
	assert(key < WIRE_NUMBERS);
	return w->number[key];
}

static inline struct wire_bytes wire_bytes(const struct wire *w, enum wire_key key)
{
	assert(key >= WIRE_NUMBERS && key < WIRE_KEYS);
	return w->bytes[key - WIRE_NUMBERS];
}

/* Copies a text and a final 0 to @to. False: it is absent, has a 0 inside, or does not fit. */
bool wire_text(const struct wire *w, enum wire_key key, char *to, size_t capacity);

/* False (FAULT_PROTOCOL): the packet is not a message. fault->field is the key that is missing or
 * has the wrong type, or "packet". */
bool wire_decode(struct wire *w, const void *packet, size_t n, struct fault *fault);
/* The code of an error. FAULT_NONE: it is unknown here. */
enum fault_code wire_code(const struct wire *w);
const char *wire_op_name(enum wire_op op);

/* Reads plain decimal digits, up to 2^64 - 1. False: @text is anything else, and *@value is
 * unchanged. */
bool wire_digits(const char *text, uint64_t *value);

/* Names are 1 to LIMIT_NAME_BYTES bytes of UTF-8 without control characters. Names of streams, runs
 * and tags become file names: no '/', no leading dot. Names of datasets (labels) may contain both.
 */
bool wire_name_ok(const char *name);
bool wire_label_ok(const char *name);

/* A daemon's knowledge of the shards of a dataset. Equal numbers: they are the same. */
struct wire_shards {
	uint64_t name;	 /* a hash of the dataset's name */
	uint64_t tokens; /* of some or all; the low 3 bits tell how they are known. 0: not known */
	uint32_t files;	 /* of sizes and mtimes of shards, and their indexes. 0: not known */
	uint16_t notes;	 /* of documents, masks and their files. 0: none are served */
	uint16_t eos;	 /* 0: no documents are served */
};

_Static_assert(sizeof(struct wire_shards) == 24, "it is sent as it is, without padding");

/* Returns the first of @is[@n] that differs from the one of the same name of @was[@had], or @n. */
uint32_t wire_shards_differ(
	const struct wire_shards *was, uint32_t had, const struct wire_shards *is, uint32_t n);

#endif
