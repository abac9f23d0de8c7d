#include "daemon/control/reading.h"

#include <sys/resource.h>

enum {
	OPEN_SHARDS_MOST = 1024,
	DESCRIPTORS_OWN = 40, /* the loop, the reader, the listener, metrics, files of the pool */
	DESCRIPTORS_A_SESSION = 4, /* socket, pidfd, and two memfds during the attach */
	LATER_STREAMS = 32,
	INDEXES_SHARE = 16, /* 1/16 of memory: is for the indexes of shards */
};

/* Descriptors are divided at the start, so that shards can be opened however many clients attach.
 */
struct descriptors {
	unsigned files, sessions;
};

static struct descriptors share_descriptors(void)
{
	struct rlimit limit = {.rlim_cur = 256};

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			getrlimit(RLIMIT_NOFILE, &limit);
	}
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

static uint64_t largest_window(const struct catalog *catalog)
{
	uint64_t largest = 0;

	for (uint32_t i = 0; i < catalog->config->streams; i++) {
		const struct stream *s = &catalog->stream[i];
		uint64_t bytes = (s->config->seq_len + s->config->extra) * s->token_bytes;

		largest = bytes > largest ? bytes : largest;
	}
	return largest;
}

static bool any_dataset(const struct catalog *catalog, bool (*is)(const struct dataset *d))
{
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		for (uint32_t d = 0; d < catalog->config->stream[i].datasets; d++)
			if (is(&catalog->stream[i].dataset[d]))
				return true;
	return false;
}

static bool is_compressed(const struct dataset *d)
{
	return d->frame_bytes > 0;
}

/* Do its shards keep an index file open? */
static bool is_indexed(const struct dataset *d)
{
	return !d->plain || d->marked;
}

/* Do its shards keep a mask file open? */
static bool is_masked(const struct dataset *d)
{
	return d->masks;
}

/* Some more than the config has, for those that a reload adds. */
static unsigned room_for_streams(const struct config *config)
{
	unsigned room = 2 * config->streams + LATER_STREAMS;

	return room < LIMIT_STREAMS ? room : LIMIT_STREAMS;
}

uint64_t reading_indexes(const struct catalog *catalog)
{
	return any_dataset(catalog, is_indexed) ? catalog->config->memory_bytes / INDEXES_SHARE : 0;
}

struct reading reading_plan(const struct catalog *catalog)
{
	const struct config *config = catalog->config;
	struct descriptors descriptors = share_descriptors();
	unsigned each = 1 + any_dataset(catalog, is_indexed) + any_dataset(catalog, is_masked);

	return (struct reading){
		.options =
			{
				.io = config->io,
				.direct = config->direct,
				.depth = LIMIT_READS / 2,
				.files = (descriptors.files + each - 1) / each,
				.streams = room_for_streams(config),
				.largest_window_bytes = largest_window(catalog),
				.frames_bytes = any_dataset(catalog, is_compressed)
							? dataset_frames_budget(config)
							: 0,
				.indexes_bytes = reading_indexes(catalog),
			},
		.sessions = descriptors.sessions,
	};
}
