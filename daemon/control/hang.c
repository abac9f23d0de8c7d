#include "daemon/control/control.h"

#include <stdio.h>

void hang_shard(const struct reader_hang *hang, char *path, size_t path_bytes)
{
	dataset_shard_path(hang->dataset, hang->shard, path, path_bytes);
	if (!path[0]) /* too long */
		snprintf(path, path_bytes, "%s", dataset_shard_name(hang->dataset, hang->shard));
	fault_line(path);
}

static void log_change(
	const struct stream *stream, const struct reader_hang *was, const struct reader_hang *is)
{
	char path[LIMIT_TEXT_BYTES];
	struct log_subject subject = {.stream = stream->config->name, .shard = path};

	if (is->ticks > 0 && was->ticks == 0) {
		hang_shard(is, path, sizeof(path));
		log_about(&subject, LOG_WARNING,
			"stream %s: storage of %s has not answered for %u s; the stream waits, "
			"other streams continue; check the disk, the file server, and that "
			"descriptors are left",
			stream->config->name, path, is->ticks);
	} else if (was->ticks > 0 && is->ticks == 0) {
		hang_shard(was, path, sizeof(path));
		log_about(&subject, LOG_NOTE, "stream %s: storage of %s answers again, after %u s",
			stream->config->name, path, was->ticks);
	}
}

void hangs_clock(struct hangs *hangs, struct data_thread *data_thread)
{
	for (uint32_t slot = 0; slot < hangs->catalog->config->streams; slot++) {
		struct reader_hang was = hangs->of[slot];

		const struct stream *stream = NULL;

		hangs->of[slot] = data_thread_hang(data_thread, slot);
		if (was.ticks > 0 || hangs->of[slot].ticks > 0)
			stream = &hangs->catalog->stream[slot];
		if (stream)
			log_change(stream, &was, &hangs->of[slot]);
	}
}

const struct reader_hang *hang_of(const struct hangs *hangs, const struct stream *stream)
{
	return &hangs->of[stream->slot];
}

const struct stream *hang_longest(const struct hangs *hangs)
{
	uint32_t longest = 0;

	for (uint32_t slot = 1; slot < hangs->catalog->config->streams; slot++)
		if (hangs->of[slot].ticks > hangs->of[longest].ticks)
			longest = slot;
	return hangs->of[longest].ticks > 0 ? &hangs->catalog->stream[longest] : NULL;
}
