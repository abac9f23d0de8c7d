#include "daemon/control/quota.h"

#include "daemon/config/config.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	CONNECTIONS_SHARED = 4, /* 1/4 of the connections is divided into shares */
	MEMORY_SHARED = 8,	/* 1/8 of the ring memory, likewise */
	OPERATORS = 16,		/* connections reserved for root and the daemon's user */
	RUNS_AT_ONCE = 64,
	RUN_MS = 2000,
	RUNS_MOST = 16384,
	FILES_AT_ONCE = 256,
	FILE_MS = 100,
	LATER_USERS = 256, /* that a reload may add */
};

/* A token bucket. Below 0: more was done than allowed, because it is counted afterwards. */
struct bucket {
	int64_t left;
	uint64_t filled_ms;
};

struct quota {
	uid_t uid;
	bool listed;	/* in allow_uids or admin_uids: has a share */
	bool unlimited; /* root and the daemon's own user */
	unsigned connected, runs;
	uint64_t bytes;
	struct bucket begins, files;
};

struct quotas {
	unsigned connections;
	unsigned listed;
	uint32_t n, room;
	struct quota quota[]; /* connections refer to them */
};

static void add(struct quotas *q, uid_t uid, bool listed)
{
	struct quota *quota = quota_of(q, uid);

	if (!quota) {
		quota = &q->quota[q->n++];
		*quota = (struct quota){.uid = uid, .unlimited = uid == 0 || uid == geteuid()};
		quota->begins.left = RUNS_AT_ONCE;
		quota->files.left = FILES_AT_ONCE;
	}
	q->listed += listed && !quota->listed;
	quota->listed |= listed;
}

/* The number of users in @uid that are not known. */
static uint32_t unknown(struct quotas *q, const uid_t *uid, uint32_t n)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < n; i++)
		count += !quota_of(q, uid[i]);
	return count;
}

bool quotas_list(struct quotas *q, const struct config *config)
{
	if (unknown(q, config->allow_uid, config->allow_uids) +
			unknown(q, config->admin_uid, config->admin_uids) >
		q->room - q->n)
		return false;
	for (uint32_t i = 0; i < q->n; i++)
		q->quota[i].listed = false;
	q->listed = 0;
	for (uint32_t i = 0; i < config->allow_uids; i++)
		add(q, config->allow_uid[i], true);
	for (uint32_t i = 0; i < config->admin_uids; i++)
		add(q, config->admin_uid[i], true);
	return true;
}

struct quotas *quotas_new(const struct config *config, unsigned connections)
{
	size_t most = (size_t)config->allow_uids + config->admin_uids + 2 + LATER_USERS;
	struct quotas *q = calloc(1, sizeof(*q) + most * sizeof(q->quota[0]));

	if (!q)
		return NULL;
	q->connections = connections;
	add(q, 0, false);
	add(q, geteuid(), false);
	q->room = (uint32_t)most;
	quotas_list(q, config);
	return q;
}

void quotas_free(struct quotas *q)
{
	free(q);
}

struct quota *quota_of(struct quotas *q, uid_t uid)
{
	for (uint32_t i = 0; i < q->n; i++)
		if (q->quota[i].uid == uid)
			return &q->quota[i];
	return NULL;
}

/* ---- shares ---- */

static uint64_t missing(uint64_t share, uint64_t used)
{
	return share > used ? share - used : 0;
}

/* Connections reserved for users other than @quota's. */
static uint64_t kept_connections(const struct quotas *q, const struct quota *quota)
{
	uint64_t share = q->listed ? q->connections / CONNECTIONS_SHARED / q->listed : 0, kept = 0,
		 operators = 0;

	for (uint32_t i = 0; i < q->n; i++) {
		const struct quota *other = &q->quota[i];

		if (other->listed && other != quota)
			kept += missing(share, other->connected);
		operators += other->unlimited ? other->connected : 0;
	}
	return kept + missing(q->connections / 16 < OPERATORS ? q->connections / 16 : OPERATORS,
			      operators);
}

bool quota_connect(
	const struct quotas *q, struct quota *quota, unsigned connected, struct fault *fault)
{
	quota->connected++;
	if (quota->unlimited || connected + kept_connections(q, quota) <= q->connections)
		return true;
	if (quota->listed && quota->connected <= q->connections / CONNECTIONS_SHARED / q->listed)
		return true;
	return fault_set_passing(fault, FAULT_DESCRIPTORS, "connections",
		"uid %u has %u of %u connections, and the rest is reserved for other users; close "
		"some, or " PHRASE_NOFILE,
		(unsigned)quota->uid, quota->connected - 1, q->connections);
}

void quota_disconnect(struct quota *quota)
{
	quota->connected--;
}

bool quota_memory(const struct quotas *q, const struct quota *quota, uint64_t need, uint64_t used,
	uint64_t total, struct fault *fault)
{
	uint64_t share = q->listed ? total / MEMORY_SHARED / q->listed : 0, kept = 0, most;

	if (quota->unlimited || (quota->listed && quota->bytes + need <= share))
		return true;
	for (uint32_t i = 0; i < q->n; i++)
		if (q->quota[i].listed && &q->quota[i] != quota)
			kept += missing(share, q->quota[i].bytes);
	if (used + need + kept <= total)
		return true;
	/* If all other users leave, this one may have everything except their shares. */
	most = total - share * (q->listed - quota->listed);
	return (need <= most ? fault_set_passing : fault_set)(fault, FAULT_MEMORY, "slots",
		"the ring needs %" PRIu64 " bytes; uid %u has %" PRIu64 " of %" PRIu64
		", and %" PRIu64
		" of the rest are reserved for other users; raise memory:, or " PHRASE_SLOTS,
		need, (unsigned)quota->uid, quota->bytes, total, kept);
}

void quota_take(struct quota *quota, uint64_t bytes)
{
	quota->bytes += bytes;
}

void quota_return(struct quota *quota, uint64_t bytes)
{
	quota->bytes -= bytes;
}

/* ---- rates ---- */

static bool has_left(struct bucket *b, int64_t most, unsigned each_ms, uint64_t now_ms)
{
	uint64_t more = (now_ms - b->filled_ms) / each_ms;

	if (b->filled_ms == 0 || more >= (uint64_t)(most - b->left)) {
		b->left = b->filled_ms == 0 ? b->left : most;
		b->filled_ms = now_ms;
	} else {
		b->left += (int64_t)more;
		b->filled_ms += more * each_ms;
	}
	return b->left > 0;
}

bool quota_may_begin(struct quota *quota, uint64_t now_ms, struct fault *fault)
{
	if (quota->unlimited)
		return true;
	if (quota->runs >= RUNS_MOST)
		return fault_set(fault, FAULT_ATTACH, "run",
			"uid %u has %u runs in state_dir, which is the limit; remove old ones "
			"there and restart tokend, or use the name of one of them",
			(unsigned)quota->uid, quota->runs);
	if (has_left(&quota->begins, RUNS_AT_ONCE, RUN_MS, now_ms))
		return true;
	return fault_set_passing(fault, FAULT_ATTACH, "run",
		"uid %u has begun too many runs, and may now begin one every %d s; use the name "
		"of one of them",
		(unsigned)quota->uid, RUN_MS / 1000);
}

void quota_begun(struct quota *quota)
{
	quota->begins.left--;
}

void quota_has_run(struct quota *quota)
{
	quota->runs++;
}

bool quota_may_write(
	struct quota *quota, uint64_t now_ms, enum fault_code code, struct fault *fault)
{
	if (quota->unlimited || has_left(&quota->files, FILES_AT_ONCE, FILE_MS, now_ms))
		return true;
	return fault_set_passing(fault, code, "state_dir",
		"uid %u has written too many files, and may now write %d a second; save less "
		"often",
		(unsigned)quota->uid, 1000 / FILE_MS);
}

void quota_written(struct quota *quota, unsigned files)
{
	quota->files.left -= files;
}
