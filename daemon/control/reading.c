#include "daemon/control/control.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <sys/resource.h>

enum {
	OPEN_SHARDS_MOST = 1024,
	DESCRIPTORS_OWN = 40, /* the loop, the reader, the listener, metrics, files of the pool */
	DESCRIPTORS_LEAST = 64,
	DESCRIPTORS_A_SESSION = 4, /* socket, pidfd, and two memfds during the attach */
	SESSIONS_FEW = 16,	   /* fewer are reported at the start */
	DESCRIPTORS_FEW = (DESCRIPTORS_OWN + SESSIONS_FEW * DESCRIPTORS_A_SESSION) * 4 / 3,
	INDEXES_SHARE = 16,	       /* 1/16 of memory: is for the indexes of shards */
	STORES_SHARE = 8,	       /* 1/8 of memory: is for answers of stores, */
	WINDOWS_LEAST = 16,	       /* and has room for so many windows */
	LOCAL_DEPTH = LIMIT_READS / 2, /* a stream alone gets half of it */
	STORE_DEPTH = 254,	       /* and so 128 reads: as many as a store has connections */
	START_PATIENCE_MS = 60000,     /* how long a start waits for a store that does not answer */
};

/* Any thread. */
static void log_warning(const char *line)
{
	log_line(LOG_WARNING, "%s", line);
}

bool reading_descriptors(struct fault *fault)
{
	struct rlimit limit = {.rlim_cur = 256};

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			getrlimit(RLIMIT_NOFILE, &limit);
	}
	return limit.rlim_cur >= DESCRIPTORS_LEAST ||
	       fault_set(fault, FAULT_DESCRIPTORS, "descriptors",
		       "this process may have %u files open, and tokend needs %d; " PHRASE_NOFILE,
		       (unsigned)limit.rlim_cur, DESCRIPTORS_LEAST);
}

/* @n, but at least 1 and at most @most. */
static uint64_t within(uint64_t n, uint64_t most)
{
	return n < 1 ? 1 : n < most ? n : most;
}

static uint64_t window_bytes(const struct stream *s)
{
	return (s->config->seq_len + s->config->extra) * s->token_bytes;
}

/* Properties of all datasets together. */
struct traits {
	bool compressed, indexed, masked; /* some shards are, or keep such files open */
	uint64_t largest;		  /* window, in bytes */
	const struct stream *stored;	  /* that in a store with the largest window, or NULL */
	unsigned buckets;		  /* of stores */
};

static struct traits traits_of(const struct catalog *catalog)
{
	struct traits t = {0};

	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		const struct stream *s = &catalog->stream[i];

		t.largest = window_bytes(s) > t.largest ? window_bytes(s) : t.largest;
		for (uint32_t n = 0; n < s->config->datasets; n++) {
			const struct dataset *d = &s->dataset[n];

			t.compressed |= d->frame_bytes > 0;
			t.indexed |= !d->plain || d->marked;
			t.masked |= d->masks;
			if (!d->bucket)
				continue;
			if (!t.stored || window_bytes(s) > window_bytes(t.stored))
				t.stored = s;
			if (t.buckets <= store_number(d->bucket))
				t.buckets = store_number(d->bucket) + 1;
		}
	}
	return t;
}

struct stores *reading_stores(const struct config *config, bool cache, struct fault *fault)
{
	return store_open(
		&(struct store_options){
			.config = config,
			.memory_bytes = config->memory_bytes / STORES_SHARE,
			.patience_ms = START_PATIENCE_MS,
			.cache = cache,
			.log = log_warning,
		},
		fault);
}

bool reading_fits_cache(const struct config *config, struct fault *fault)
{
	struct fault cause;

	return !config->cache_dir ||
	       store_cache_suits(config->cache_dir, config->cache_bytes, &cause) ||
	       config_refuse(
		       fault, config->path, config->cache_line, cause.field, "%s", cause.text);
}

/*
 * Divides the memory for answers: reads in flight in each place, and places. Half of it is left for
 * windows that are kept for peers.
 */
static bool plan_stores(
	struct reading *r, const struct config *config, const struct traits *t, struct fault *fault)
{
	uint64_t bytes = config->memory_bytes / STORES_SHARE, window = window_bytes(t->stored);

	if (bytes < WINDOWS_LEAST * window)
		return fault_set(fault, FAULT_ARGUMENT, "memory",
			"%s: memory: an eighth of its %" PRIu64
			" bytes is for answers of object stores, which is less than %d windows of "
			"stream %s, %" PRIu64 " bytes each; set memory: %" PRIu64 "MiB or more",
			config->path, config->memory_bytes, WINDOWS_LEAST, t->stored->config->name,
			window, (STORES_SHARE * WINDOWS_LEAST * window >> 20) + 1);

	r->store_places = (unsigned)within(t->buckets, ENGINE_PLACES - 1);
	r->store_depth = (unsigned)within(bytes / t->buckets / window / 2, STORE_DEPTH);
	r->memory_bytes = bytes;
	return true;
}

bool reading_open(const struct catalog *catalog, struct stores *stores, struct reading *r,
	struct fault *fault)
{
	const struct config *config = catalog->config;
	const struct traits t = traits_of(catalog);
	struct rlimit limit = {.rlim_cur = 256};

	*r = (struct reading){.depth = LOCAL_DEPTH};
	if (t.stored && !plan_stores(r, config, &t, fault))
		return false;
	/* Descriptors are divided at the start, so that shards can be opened however many clients
	 * attach. */
	getrlimit(RLIMIT_NOFILE, &limit);

	uint64_t descriptors = within(limit.rlim_cur / 4, OPEN_SHARDS_MOST),
		 each = 1 + t.indexed + t.masked, files = (descriptors + each - 1) / each;
	uint64_t taken = limit.rlim_cur / 4 + DESCRIPTORS_OWN;

	/* Each read in flight may need a file of its own. */
	if (files < r->depth + config->streams)
		r->depth = (unsigned)within(
			files > config->streams ? files - config->streams : 1, LOCAL_DEPTH);
	struct reader_options options = {
		.io = config->io,
		.direct = config->direct,
		.depth = r->depth + config->streams,
		.store_depth = r->store_places * (r->store_depth + config->streams),
		.stores = t.stored ? stores : NULL,
		.files = (unsigned)files,
		.streams = config->streams,
		.frames_bytes = t.compressed ? config_frames_budget(config) : 0,
		.indexes_bytes = t.indexed ? config->memory_bytes / INDEXES_SHARE : 0,
		.largest_window_bytes = t.largest,
		.log = log_warning,
	};

	r->sessions = (unsigned)within(
		limit.rlim_cur > taken ? (limit.rlim_cur - taken) / DESCRIPTORS_A_SESSION : 0,
		LIMIT_SESSIONS);
	if (r->sessions < SESSIONS_FEW)
		log_line(LOG_WARNING,
			"%u open files are enough for %u clients; %d need %d; " PHRASE_NOFILE,
			(unsigned)limit.rlim_cur, r->sessions, SESSIONS_FEW, DESCRIPTORS_FEW);
	r->memory_bytes += reader_memory(&options);
	r->reader = reader_open(&options, r->note, sizeof(r->note), fault);
	return r->reader || fault_prefix(fault, "%s: ", config->path);
}

void reading_cap_memory(struct config *config, const struct cgroup *cgroup)
{
	struct cgroup_room room;

	if (!cgroup_room(cgroup, &room) || room.limit - room.kept >= config->memory_bytes)
		return;
	log_line(LOG_WARNING,
		"memory: lowered to %" PRIu64 " bytes from %" PRIu64 ": cgroup %s may use %" PRIu64
		" bytes, of which %" PRIu64 " are reserved and %" PRIu64
		" are in use; raise its limit, or lower memory:",
		room.limit - room.kept, config->memory_bytes, room.path, room.limit, room.kept,
		room.used);
	config->memory_bytes = room.limit - room.kept;
}
