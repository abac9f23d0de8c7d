/*
 * The ring between the daemon and one trainer process: the layout of its two memories, and the
 * protocol of publishing, releasing and waking.
 *
 *   meta   written by the daemon, mapped read-only by the client (sealed F_SEAL_FUTURE_WRITE)
 *          | header page: struct ring_header | struct ring_slot [slots]
 *          | struct ring_row [slots × rows]
 *          | with documents: u32 count [slots × rows] | u32 start [slots × rows × window_tokens]
 *          | with a loss mask: u8 [slots × rows × window_tokens] |
 *   data   mapped read-write by both (CUDA can only register writable maps)
 *          | slot 0 | slot 1 | … (no slot crosses a multiple of 1 GiB)
 *          | control page: struct ring_control |
 *
 * Slots are numbered 0, 1, 2, … without end; number s is stored at index s mod slots. The daemon
 * fills them in order and raises `published`; the client reads below it and raises `released`.
 * Tokens are packed, [rows, window_tokens], in their stored width. The daemon never reads a slot
 * after it has published it. It reads only the words of the control page, and checks their range:
 * a client that writes nonsense there harms only itself.
 *
 * Documents. start[0] < start[1] < … are the indices, ≥ 1, of the `count` tokens of a row's window
 * that belong to another document than the token before them.
 * Loss mask. One byte per token: 1 if it may be a label, otherwise 0; 0 in padding rows.
 *
 * Waiting. A side that waits first announces what it waits for, then checks again. The other side
 * first publishes its progress, then checks for a waiter. Both store, then load, and all four
 * accesses are seq_cst, so at least one side sees the other. A wake-up is one byte on the socket.
 *
 *   client   client_waits = s + 1; published > s ?
 *   daemon   published = p; client_waits ≤ p ? → wake-up
 *
 *   daemon   wake_at = r; released ≥ r ?
 *   client   released = q; wake_at ≤ q ? → wake-up
 *
 * The daemon usually waits for more than one slot, so that it is seldom woken, and for half a ring
 * at most. A client that keeps more and waits for one slot would then wait forever. So the
 * beginning of its wait is a reason, too:
 *
 *   daemon   wake_at = r; client_waits, and a slot is free ?
 *   client   client_waits = s + 1; wake_at ? → wake-up
 */
#ifndef TOKEND_RING_H
#define TOKEND_RING_H

#include "proto/fault.h"
#include "proto/limits.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_MAGIC   UINT64_C(0x31676e69726b6f74) /* "tokring1" */
#define RING_VERSION 1
#define RING_PAGE    4096
#define RING_ENDLESS UINT64_MAX
#define RING_PADDING UINT64_MAX /* position of a row after the end of its stream */

/* Where a window's annotations are (document starts, loss mask). NULL: not requested. */
struct annotations {
	/* Document starts: *count token indices ≥ 1, ascending, in start[], which has room for one
	 * per token. Both are NULL or neither. */
	uint32_t *count, *start;
	uint8_t *loss_mask; /* one byte per token: 1 if it may be a label, otherwise 0 */
};

struct ring_geometry {
	uint32_t slots;
	uint32_t rows;		/* micro-batch */
	uint32_t window_tokens; /* seq_len + extra */
	uint32_t token_bytes;	/* 2 or 4 */
	uint64_t slot_bytes;	/* rows × window_tokens × token_bytes */
	uint64_t slot_stride;	/* slot_bytes, rounded up to 64 */
	uint64_t control_at;	/* offset of the control page in the data memory */
	uint64_t meta_bytes;
	uint64_t data_bytes;
	uint32_t documents; /* 1: rows have document starts */
	uint32_t loss_mask; /* 1: rows have a loss mask */
};

enum { RING_REASON_BYTES = 184 };		 /* of a wait, with its 0 */
enum { RING_DOCUMENTS = 1, RING_LOSS_MASK = 2 }; /* annotations of rows */

struct ring_slot {
	uint64_t position;   /* of row 0 */
	uint32_t rows_valid; /* the rows after them are padding */
	uint32_t reserved;
};

struct ring_row {
	uint64_t position; /* or RING_PADDING; everything else is then 0 */
	uint64_t epoch;
	uint64_t window;  /* number in the dataset */
	uint64_t offset;  /* of the first token in its shard, in tokens */
	uint32_t dataset; /* index in the cursor's list */
	uint32_t shard;	  /* index in the dataset's sorted list */
};

struct ring_header {
	uint64_t magic;
	uint32_t version;
	uint32_t reserved;
	struct ring_geometry geometry;
	alignas(64) _Atomic uint64_t published; /* slots, since attach */
	_Atomic uint64_t end;			/* slots this rank gets in all, or RING_ENDLESS */
	alignas(64) _Atomic uint64_t
		wake_at; /* the daemon waits for released ≥ this; 0: it does not */
	alignas(64) _Atomic uint64_t request;	   /* number of an unanswered one; 0: none */
	alignas(64) _Atomic uint64_t wait_version; /* of wait_reason; odd: it is being written */
	/* A string that names what the daemon waits for. */
	_Atomic uint64_t wait_reason[RING_REASON_BYTES / 8];
};

struct ring_control {
	alignas(64) _Atomic uint64_t released; /* slots that the client does not use any more */
	alignas(64) _Atomic uint64_t
		client_waits;	      /* it waits for published ≥ this; 0: it does not */
	_Atomic uint64_t waits_since; /* ns on CLOCK_MONOTONIC: when that wait began; 0: unknown */
};

_Static_assert(sizeof(struct ring_slot) == 16 && sizeof(struct ring_row) == 40, "shared layout");
_Static_assert(sizeof(struct ring_geometry) == 64, "shared layout");
_Static_assert(offsetof(struct ring_geometry, documents) == 56, "shared layout");
_Static_assert(offsetof(struct ring_geometry, loss_mask) == 60, "shared layout");
_Static_assert(offsetof(struct ring_header, geometry) == 16, "shared layout");
_Static_assert(offsetof(struct ring_header, published) == 128, "shared layout");
_Static_assert(offsetof(struct ring_header, end) == 136, "shared layout");
_Static_assert(offsetof(struct ring_header, wake_at) == 192, "shared layout");
_Static_assert(offsetof(struct ring_header, request) == 256, "shared layout");
_Static_assert(offsetof(struct ring_header, wait_version) == 320, "shared layout");
_Static_assert(offsetof(struct ring_header, wait_reason) == 328, "shared layout");
_Static_assert(sizeof(struct ring_header) == 512, "shared layout");
_Static_assert(sizeof(struct ring_header) <= RING_PAGE, "shared layout");
_Static_assert(offsetof(struct ring_control, client_waits) == 64, "shared layout");
_Static_assert(offsetof(struct ring_control, waits_since) == 72, "shared layout");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "shared words must be lock-free");

/* One side's view of a ring. The pointers are into the caller's mappings; geometry is a private
 * copy. */
struct ring {
	struct ring_geometry geometry;
	struct ring_header *header;
	struct ring_slot *slot;
	struct ring_row *row;
	uint32_t *document_count; /* NULL without documents */
	uint32_t *document_start;
	uint8_t *loss_mask; /* NULL without one */
	struct ring_control *control;
	uint8_t *data;
};

/*
 * Computes the sizes of a ring. @annotations: RING_DOCUMENTS, RING_LOSS_MASK, both or none. False
 * (FAULT_ATTACH): a bound is exceeded.
 */
bool ring_geometry(struct ring_geometry *g, uint64_t slots, uint64_t rows, uint64_t window_tokens,
	uint64_t token_bytes, unsigned annotations, struct fault *fault);

/* The daemon's side: makes a ring of two zero-filled mappings. */
void ring_format(struct ring *ring, const struct ring_geometry *g, void *meta, void *data);
/* The client's side: checks the header against the sizes of the two mappings. False
 * (FAULT_PROTOCOL): not a ring of this version. */
bool ring_open(struct ring *ring, void *meta, uint64_t meta_bytes, void *data, uint64_t data_bytes,
	struct fault *fault);

/* Asserts the invariants of a geometry. */
void ring_geometry_check(const struct ring_geometry *g);
/* The same for a view of a ring, its pointers included. */
void ring_check(const struct ring *ring);

/* Byte offset of slot number @s in the data memory. */
uint64_t ring_slot_offset(const struct ring_geometry *g, uint64_t s);

static inline void *ring_slot_data(const struct ring *ring, uint64_t s)
{
	return ring->data + ring_slot_offset(&ring->geometry, s);
}

static inline struct ring_slot *ring_slot(const struct ring *ring, uint64_t s)
{
	return &ring->slot[s % ring->geometry.slots];
}

static inline struct ring_row *ring_rows(const struct ring *ring, uint64_t s)
{
	return &ring->row[s % ring->geometry.slots * ring->geometry.rows];
}

/* Places of the annotations of ring row @index, which is (slot number mod slots) × rows + row. */
static inline struct annotations ring_annotations(const struct ring *ring, uint32_t index)
{
	bool documents = ring->geometry.documents, loss_mask = ring->geometry.loss_mask;
	size_t token = (size_t)index * ring->geometry.window_tokens;

	return (struct annotations){
		.count = documents ? ring->document_count + index : NULL,
		.start = documents ? ring->document_start + token : NULL,
		.loss_mask = loss_mask ? ring->loss_mask + token : NULL,
	};
}

/* ---- the daemon's side ---- */

/* Raises published. Returns the client_waits that is reached, and needs a wake-up; otherwise 0. */
static inline uint64_t ring_publish(const struct ring *ring, uint64_t published)
{
	atomic_store_explicit(&ring->header->published, published, memory_order_seq_cst);
	uint64_t waits = atomic_load_explicit(&ring->control->client_waits, memory_order_seq_cst);

	return waits != 0 && waits <= published ? waits : 0;
}

/* Loads released into *@released. False: the client wrote less than before, or more than was
 * published. */
static inline bool ring_released(const struct ring *ring, uint64_t published, uint64_t *released)
{
	uint64_t now = atomic_load_explicit(&ring->control->released, memory_order_seq_cst);

	if (now < *released || now > published)
		return false;
	*released = now;
	return true;
}

/* One @n-th of the ring: so many slots, at least one. */
static inline uint64_t ring_part(const struct ring_geometry *g, uint32_t n)
{
	return g->slots > n ? g->slots / n : 1;
}

/* Asks the client for a wake-up once released ≥ @at; 0: never. Check released again afterwards. */
static inline void ring_wake_at(const struct ring *ring, uint64_t at)
{
	atomic_store_explicit(&ring->header->wake_at, at, memory_order_seq_cst);
}

/* When the client's present wait began, by its own clock, for metrics only. 0: it does not say. */
static inline uint64_t ring_waits_since(const struct ring *ring)
{
	return atomic_load_explicit(&ring->control->waits_since, memory_order_relaxed);
}

/* Does the client wait for a slot that is not published yet? */
static inline bool ring_client_waits(const struct ring *ring, uint64_t published)
{
	return atomic_load_explicit(&ring->control->client_waits, memory_order_seq_cst) > published;
}

/*
 * A wake-up came: does the daemon wait, and has what it waits for happened? Reads only shared
 * words, for a thread that does not own the feed. False: needless, and if it is needed later, the
 * client sends another one. Most impossible words, and those that change meanwhile, give true.
 */
static inline bool ring_wanted(const struct ring *ring)
{
	uint64_t at = atomic_load_explicit(&ring->header->wake_at, memory_order_seq_cst),
		 published = atomic_load_explicit(&ring->header->published, memory_order_seq_cst),
		 released = atomic_load_explicit(&ring->control->released, memory_order_seq_cst);

	if (at == 0)
		return false;
	/* Reached, or lower than when the feed began to wait, for half of the slots at most. */
	if (at - released - 1 >= ring_part(&ring->geometry, 2))
		return true;
	return (int64_t)(published - released) < (int64_t)ring->geometry.slots &&
	       ring_client_waits(ring, published);
}

/* Shows the client what the daemon waits for; "": for nothing. A longer text is cut. */
void ring_say_reason(const struct ring *ring, const char *text);

/* ---- the client's side ---- */

/* Copies what the daemon waits for. False: it does not say. Bytes below 32 become '?'. */
bool ring_reason(const struct ring *ring, char text[RING_REASON_BYTES]);

static inline uint64_t ring_published(const struct ring *ring)
{
	return atomic_load_explicit(&ring->header->published, memory_order_acquire);
}

/* Announces a wait for slot number @s. True: it is published already, so do not wait. Otherwise ask
 * ring_daemon_waits() whether the daemon needs a wake-up. */
static inline bool ring_wait_begin(const struct ring *ring, uint64_t s)
{
	atomic_store_explicit(&ring->control->client_waits, s + 1, memory_order_seq_cst);
	return atomic_load_explicit(&ring->header->published, memory_order_seq_cst) > s;
}

/* For the daemon's metrics. Before ring_wait_begin(). */
static inline void ring_say_waits_since(const struct ring *ring, uint64_t ns)
{
	atomic_store_explicit(&ring->control->waits_since, ns, memory_order_relaxed);
}

static inline bool ring_daemon_waits(const struct ring *ring)
{
	return atomic_load_explicit(&ring->header->wake_at, memory_order_seq_cst) != 0;
}

static inline void ring_wait_end(const struct ring *ring)
{
	atomic_store_explicit(&ring->control->client_waits, 0, memory_order_relaxed);
}

/* Raises released. Returns the wake_at that is reached, and needs a wake-up; otherwise 0. */
static inline uint64_t ring_release(const struct ring *ring, uint64_t released)
{
	atomic_store_explicit(&ring->control->released, released, memory_order_seq_cst);
	uint64_t at = atomic_load_explicit(&ring->header->wake_at, memory_order_seq_cst);

	return at != 0 && at <= released ? at : 0;
}

#endif
