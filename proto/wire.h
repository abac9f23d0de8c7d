/*
 * Messages on the socket: one MessagePack map a packet, {"op": …, key: value, …}, and no value is a
 * container.
 *
 * From the client to the daemon (→) and back (←):
 *
 *   → hello{version, host, process?}
 *   ← hello{version}
 *   ← error{code, field, text, passing?}    at any time; the daemon then closes, unless it answers
 * a checkpoint or an operator. passing: the same attach fits once others leave, so the client tries
 * again until its deadline
 *
 *   a trainer's session
 *   → attach{stream, run, rank, world, micro_batch, peer, slots, begin|position|tag|cursor,
 * helper?, node?, replaces?, strict?} ← feed{cursor, fingerprint, end, meta_bytes, data_bytes, id?,
 * run?} + 2 fds. A seek attaches anew and says in replaces the id of the session that it closes
 * then: `memory:` counts the two rings as one meanwhile. run: what an unnamed run is called if
 * "default" is another user's ← warning{text}    at any time, only to clients that sent their
 * process → checkpoint{tag, cursor} ← saved{tag, path, digest} → describe{} ← described{cursor}
 * where the stream begins → pending{} ← request{number, kind, args}    number 0: none →
 * answer{number, outcome, text, cursor?, from?, acts_from?}
 *
 *   an operator
 *   → status{after}
 *   ← session{…} × n, status{…, after: next page or 0}
 *   → request{stream, run?, kind, args}
 *   ← asked{number, run, sessions}
 *   ← answer{number, outcome, waiting, run, rank, world, micro_batch, peer, pid, host, text, same?,
 * cursor?, from?, acts_from?}    one at a time, as they come → cancel{number} ← cancelled{number,
 * fetched}
 *
 * A helper reads ahead for another session, which is the one that operators speak to: requests are
 * not for it.
 *
 * Requests. A request goes to the sessions of one run: they see its number in their rings until
 * they have answered it, and any of them may fetch the rest. `waiting` is how many have neither
 * done it nor failed to when the answer was passed on; at 0 the request is over. A session that
 * ends without an answer gives the answer WIRE_GONE, unless another one of its rank and peer is
 * there (it went to another ring). The first WIRE_DONE comes with its cursor, for those after it
 * `same` tells whether theirs has the very same bytes, and the first that has not is passed on too.
 * cancel takes a request back if nobody has fetched it (fetched: 0), and so does the end of the
 * operator's connection; otherwise it goes on, and a run has one at a time.
 *
 * A packet of one byte is not a message: it is a wake-up (see ring.h), in either direction. Detach
 * is close. Unknown keys are ignored, missing ones refused. Texts and bytes are borrowed from the
 * packet.
 */
#ifndef TOKEND_WIRE_H
#define TOKEND_WIRE_H

#include "proto/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION 1
#define WIRE_SOCKET  "/run/tokend/tokend.sock" /* where the daemon listens unless told otherwise */

enum { WIRE_SOCKET_BYTES = 108 }; /* of a socket's path, with its 0 */

enum wire_op {
	WIRE_HELLO,
	WIRE_ATTACH,
	WIRE_FEED,
	WIRE_CHECKPOINT,
	WIRE_SAVED,
	WIRE_PENDING,
	WIRE_REQUEST,
	WIRE_ASKED,
	WIRE_ANSWER,
	WIRE_CANCEL,
	WIRE_CANCELLED,
	WIRE_DESCRIBE,
	WIRE_DESCRIBED,
	WIRE_STATUS,
	WIRE_SESSION,
	WIRE_ERROR,
	WIRE_WARNING,
	WIRE_OPS,
};

/* Keys with numbers first, then keys with texts or bytes. The names in a packet are these, in lower
 * case. */
enum wire_key {
	WIRE_VERSION_KEY, /* "version" */
	WIRE_RANK,
	WIRE_WORLD,
	WIRE_MICRO,
	WIRE_PEER,
	WIRE_SLOTS,
	WIRE_BEGIN,
	WIRE_POSITION,
	WIRE_FINGERPRINT,
	WIRE_END,
	WIRE_META_BYTES,
	WIRE_DATA_BYTES,
	WIRE_DIGEST,
	WIRE_NUMBER,
	WIRE_AFTER,
	WIRE_ID,
	WIRE_PID,
	WIRE_PUBLISHED,
	WIRE_RELEASED,
	WIRE_LOST_WAKES,
	WIRE_SESSIONS,
	WIRE_MEMORY_BYTES, /* of rings and staging, in use */
	WIRE_LIMIT_BYTES,  /* what the config allows */
	WIRE_UPTIME_MS,
	WIRE_STALL_MS,	  /* how long this session has had no free slot */
	WIRE_REQUEST_KEY, /* "request": the number of the one this session has not answered, or 0 */
	WIRE_OUTCOME,	  /* enum wire_outcome */
	WIRE_WAITING,
	WIRE_FETCHED,
	WIRE_SAME,
	WIRE_FROM, /* the position at which it was carried out */
	WIRE_ACTS_FROM,
	WIRE_SEQ_LEN,
	WIRE_HELPER,
	WIRE_NODE,    /* of NUMA: where the client runs; in a status: where its ring is to lie */
	WIRE_PINNED,  /* bytes of the ring that a GPU's driver has registered; 0: it refused */
	WIRE_PASSING, /* of an error: 1 if the same attach may succeed later without a change */
	WIRE_REPLACES,
	WIRE_SLOW_MS, /* how long its storage has not answered */
	WIRE_PROCESS, /* random, one for each process; tells whether two sessions are of one; 0:
			 none */
	WIRE_STRICT,  /* 1: refuse, passing, while another process reads for this rank, run and peer
		       */
	WIRE_NUMBERS,

	WIRE_STREAM = WIRE_NUMBERS,
	WIRE_RUN,
	WIRE_TAG,
	WIRE_CURSOR,
	WIRE_PATH,
	WIRE_KIND,
	WIRE_ARGS,
	WIRE_CODE,
	WIRE_FIELD,
	WIRE_TEXT,
	WIRE_HOST,
	WIRE_IO,
	WIRE_SLOW_SHARD, /* the path that it waits for */
	WIRE_KEYS,
};

/* struct wire has one bit for each key. */
_Static_assert(WIRE_KEYS <= 64, "too many keys for struct wire's bit mask");

/* The first three are what trainers say: enum tokend_outcome. */
enum wire_outcome { WIRE_NOTED = 1, WIRE_DONE, WIRE_FAILED, WIRE_GONE };

enum { WIRE_ARGS_BYTES = 65536 }; /* of a request, with the 0 that ends a text */

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
	w->has |= WIRE_BIT(key);
	w->number[key] = value;
}

void wire_set_text(struct wire *w, enum wire_key key, const char *text);
void wire_set_bytes(struct wire *w, enum wire_key key, const void *bytes, size_t n);
/* Length of the packet written to @packet (LIMIT_PACKET_BYTES of room), 0 if it does not fit. */
size_t wire_encode(const struct wire *w, void *packet);

/* ---- reading ---- */

static inline bool wire_has(const struct wire *w, enum wire_key key)
{
	return w->has & WIRE_BIT(key);
}

static inline uint64_t wire_number(const struct wire *w, enum wire_key key)
{
	return w->number[key];
}

static inline struct wire_bytes wire_bytes(const struct wire *w, enum wire_key key)
{
	return w->bytes[key - WIRE_NUMBERS];
}

/* Copies a text with its 0 into @to. False if it is absent, has a 0 inside, or does not fit. */
bool wire_text(const struct wire *w, enum wire_key key, char *to, size_t capacity);

/* NULL, or why the packet is no message: names the key or the fault. */
const char *wire_decode(struct wire *w, const void *packet, size_t n);
const char *wire_op_name(enum wire_op op);

/* The number that plain decimal digits up to 2^64 - 1 are; false, with *@value as it was: @text is
 * none. */
bool wire_digits(const char *text, uint64_t *value);

/* Names are 1 to LIMIT_NAME_BYTES bytes of UTF-8 without control characters. Those of streams, runs
 * and tags become file names: no '/', no leading dot. Those of datasets (labels) may hold both. */
/* Bytes of the character that @text begins with; 0 if it is no UTF-8, or a control character, or
 * the text is empty. */
unsigned wire_character(const char *text);
bool wire_name_ok(const char *name);
bool wire_label_ok(const char *name);

/*
 * Where a daemon of user @uid listens if that user may not create WIRE_SOCKET:
 * @runtime/tokend/tokend.sock, or /tmp/tokend-UID/tokend.sock where @runtime ($XDG_RUNTIME_DIR) is
 * NULL. The directory must belong to the user and be writable by no one else. False: the path is
 * too long for a socket.
 */
bool wire_own_socket(const char *runtime, uint64_t uid, char path[WIRE_SOCKET_BYTES]);

#endif
