#include "daemon/control/control.h"

#include "daemon/config/refuse.h"
#include "daemon/engine/engine.h"
#include "daemon/store/cache.h"
#include "proto/phrases.h"

#include <assert.h>
#include <inttypes.h>
#include <sys/resource.h>

enum {
	OPEN_SHARDS_MOST = 1024,
	DESCRIPTORS_OWN = 40, /* the loop, the reader, the listener, metrics, files of the pool */
	DESCRIPTORS_LEAST = 64,
	DESCRIPTORS_A_SESSION = 4, /* socket, pidfd, and two memfds during the attach */
	INDEXES_SHARE = 16,	   /* 1/16 of memory: is for the indexes of shards */
	STORES_SHARE = 8,	   /* 1/8 of memory: is for answers of stores, */
	WINDOWS_LEAST = 16,	   /* and has room for so many windows */
	STORE_DEPTH = LIMIT_READS / 2,
	START_PATIENCE_MS = 60000, /* how long a start waits for a store that does not answer */
};

/* Any thread. */
static void log_store(void *none, const char *line)
{
	(void)none;
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

/* Descriptors are divided at the start, so that shards can be opened however many clients attach.
 */
struct descriptors {
	unsigned files, sessions;
};

static struct descriptors share_descriptors(void)
{
	struct rlimit limit = {.rlim_cur = 256};

	getrlimit(RLIMIT_NOFILE, &limit);

	uint64_t all = limit.rlim_cur, files = all / 4;
	uint64_t left = all > files + DESCRIPTORS_OWN ? all - files - DESCRIPTORS_OWN : 0;

	files = files < 1 ? 1 : files > OPEN_SHARDS_MOST ? OPEN_SHARDS_MOST : files;
	left /= DESCRIPTORS_A_SESSION;
	return (struct descriptors){
		.files = (unsigned)files,
		.sessions = left < 1		    ? 1
			    : left > LIMIT_SESSIONS ? LIMIT_SESSIONS
						    : (unsigned)left,
	};
}

static uint64_t window_bytes(const struct stream *s)
{
	return (s->config->seq_len + s->config->extra) * s->token_bytes;
}

bool reading_by_window(const struct stream *s)
{
	for (uint32_t d = 0; d < s->config->datasets; d++)
		if (s->dataset[d].objects && s->dataset[d].piece == 0)
			return true;
	return false;
}

/* Properties of all datasets together. */
struct traits {
	bool compressed;
	bool indexed, masked;	     /* shards keep an index file open; a mask file */
	const struct stream *stored; /* the one with the largest window that is in a store, or NULL
				      */
	unsigned buckets;	     /* of stores */
};

static void add_traits(struct traits *t, const struct stream *s, const struct dataset *d)
{
	struct object object;

	t->compressed |= d->frame_bytes > 0;
	t->indexed |= !d->plain || d->marked;
	t->masked |= d->masks;
	if (!d->objects)
		return;
	if (!t->stored || window_bytes(s) > window_bytes(t->stored))
		t->stored = s;
	dataset_object(d, 0, &object);
	if (t->buckets <= store_number(object.bucket))
		t->buckets = store_number(object.bucket) + 1;
}

static struct traits traits_of(const struct catalog *catalog)
{
	struct traits t = {0};

	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t d = 0; d < catalog->stream[i].config->datasets; d++)
			add_traits(&t, &catalog->stream[i], &catalog->stream[i].dataset[d]);
	return t;
}

static uint64_t store_bytes(const struct config *config)
{
	return config->memory_bytes / STORES_SHARE;
}

struct stores *reading_stores(const struct config *config, bool cache, struct fault *fault)
{
	return store_open(
		&(struct store_options){
			.config = config,
			.memory_bytes = store_bytes(config),
			.patience_ms = START_PATIENCE_MS,
			.cache = cache,
			.log = log_store,
		},
		fault);
}

bool reading_fits_cache(const struct config *config, struct fault *fault)
{
	struct fault cause;

	return !config->cache_dir ||
	       store_cache_suits(config->cache_dir, config->cache_bytes, &cause) ||
	       config_refuse(fault, config->path, config->cache_line, cause.field, FAULT_NO_INDEX,
		       "%s", cause.text);
}

/* Whether an eighth of memory: is enough for windows of @s, which is in a store. */
static bool fits_stores(const struct config *config, const struct stream *s, struct fault *fault)
{
	if (!s || store_bytes(config) >= WINDOWS_LEAST * window_bytes(s))
		return true;
	return fault_set(fault, FAULT_ARGUMENT, "memory",
		"%s: memory: an eighth of its %" PRIu64
		" bytes is for answers of object stores, which is less than %d windows of stream "
		"%s, %" PRIu64 " bytes each; set memory: %" PRIu64 "MiB or more",
		config->path, config->memory_bytes, WINDOWS_LEAST, s->config->name, window_bytes(s),
		(STORES_SHARE * WINDOWS_LEAST * window_bytes(s) >> 20) + 1);
}

/*
 * Reads in flight in each queue, and queues. Half of the memory for answers is left for windows
 * that are kept for peers.
 */
static void plan_stores(struct reading *r, const struct config *config, const struct traits *t)
{
	r->store_bytes = store_bytes(config);
	r->store_queues = t->buckets < ENGINE_QUEUES ? t->buckets : ENGINE_QUEUES - 1;

	uint64_t windows = r->store_bytes / t->buckets / window_bytes(t->stored) / 2;

	r->store_depth = windows < 1 ? 1 : windows < STORE_DEPTH ? (unsigned)windows : STORE_DEPTH;
	r->options.store_depth = r->store_queues * r->store_depth;
}

unsigned reading_queue(const struct dataset *dataset, unsigned queues)
{
	struct object object;

	if (!dataset || !dataset->objects)
		return 0;
	assert(queues > 0);
	dataset_object(dataset, 0, &object);
	return 1 + store_number(object.bucket) % queues;
}

struct reader *reading_open(const struct catalog *catalog, struct stores *stores,
	struct reading *reading, struct fault *fault)
{
	const struct config *config = catalog->config;
	const struct traits t = traits_of(catalog);
	unsigned each = 1 + t.indexed + t.masked;
	struct descriptors descriptors = share_descriptors();
	struct reader_options options = {
		.io = config->io,
		.direct = config->direct,
		.depth = LIMIT_READS / 2,
		.stores = t.stored ? stores : NULL,
		.files = (descriptors.files + each - 1) / each,
		.streams = config->streams,
		.frames_bytes = t.compressed ? dataset_frames_budget(config) : 0,
		.indexes_bytes = t.indexed ? config->memory_bytes / INDEXES_SHARE : 0,
	};

	for (uint32_t i = 0; i < config->streams; i++)
		if (window_bytes(&catalog->stream[i]) > options.largest_window_bytes)
			options.largest_window_bytes = window_bytes(&catalog->stream[i]);
	*reading = (struct reading){.options = options, .sessions = descriptors.sessions};
	if (!fits_stores(config, t.stored, fault))
		return NULL;
	if (t.stored)
		plan_stores(reading, config, &t);
	struct reader *reader =
		reader_open(&reading->options, reading->note, sizeof(reading->note), fault);

	if (!reader)
		fault_prefix(fault, "%s: ", config->path);
	return reader;
}

void reading_cap_memory(struct config *config, const struct cgroup *cgroup)
{
	struct cgroup_room room;

	if (!cgroup || !cgroup_room(cgroup, &room) ||
		room.limit - room.kept >= config->memory_bytes)
		return;
	log_line(LOG_WARNING,
		"memory: lowered to %" PRIu64 " bytes from %" PRIu64 ": cgroup %s may use %" PRIu64
		" bytes, of which %" PRIu64 " are reserved and %" PRIu64
		" are in use; raise its limit, or lower memory:",
		room.limit - room.kept, config->memory_bytes, room.path, room.limit, room.kept,
		room.used);
	config->memory_bytes = room.limit - room.kept;
	config->memory_capped = true;
}
