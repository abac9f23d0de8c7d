#include "daemon/store/stores.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>

int64_t stores_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void stores_wake(struct stores *stores)
{
	if (stores->woken || !stores->running)
		return;
	stores->woken = true;
	eventfd_write(stores->wake_fd, 1);
}

struct session *session_find(struct stores *stores, uint32_t id)
{
	struct session **at = &stores->session[id % SESSIONS_CHAINS];

	while (*at && (*at)->id != id)
		at = &(*at)->next;
	if (!*at) {
		*at = calloc(1, sizeof(**at));
		if (!*at)
			return NULL;
		(*at)->id = id;
		TAILQ_INIT(&(*at)->wants);
	}
	return *at;
}

struct line *session_line(struct session *session, struct store_bucket *bucket)
{
	struct line *line = session->lines;

	while (line && line->bucket != bucket)
		line = line->next;
	if (line)
		return line;
	line = calloc(1, sizeof(*line));
	if (!line)
		return NULL;
	line->session = session;
	line->bucket = bucket;
	TAILQ_INIT(&line->ranges);
	line->next = session->lines;
	session->lines = line;
	return line;
}
