#include "client/ctl/offline/sums.h"

#include "client/ctl/common/error.h"
#include "client/ctl/common/file.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/store/sums.h"
#include "proto/phrases.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ctl_sums {
	char path[PATH_MAX];
	struct sums_head head;
	uint64_t *sum; /* [room], of which head.pieces are used */
	uint64_t room;
};

struct ctl_sums *ctl_sums_begin(const char *manifest, uint32_t piece)
{
	struct ctl_sums *s = calloc(1, sizeof(*s));

	if (s && sums_path(manifest, s->path, sizeof(s->path))) {
		s->head.piece = piece;
		return s;
	}
	ctl_fail("%s: %s", manifest, s ? strerror(ENAMETOOLONG) : PHRASE_MEMORY);
	free(s);
	return NULL;
}

bool ctl_sums_add(struct ctl_sums *s, uint64_t size, const char *etag, const uint64_t *sums,
	struct fault *fault)
{
	uint64_t n = sums_pieces(size, s->head.piece);

	if (s->head.pieces + n > s->room) {
		uint64_t room = 2 * s->room > s->head.pieces + n ? 2 * s->room : s->head.pieces + n;
		uint64_t *more = realloc(s->sum, room * sizeof(*more));

		if (!more)
			return fault_memory(fault);
		s->sum = more;
		s->room = room;
	}
	if (n > 0)
		memcpy(s->sum + s->head.pieces, sums, n * sizeof(*sums));
	s->head.pieces += n;
	s->head.shards++;
	s->head.manifest = sums_manifest(s->head.manifest, size, etag);
	return true;
}

bool ctl_sums_end(struct ctl_sums *s, bool keep)
{
	uint8_t head[SUMS_HEAD_BYTES];
	struct ctl_file file;
	bool fine = !keep;

	if (keep && ctl_file_begin(&file, s->path)) {
		s->head.checksum = sums_checksum(s->sum, s->head.pieces);
		sums_head_put(&s->head, head);
		fwrite(head, sizeof(head), 1, file.to);
		if (s->head.pieces > 0)
			fwrite(s->sum, sizeof(*s->sum), s->head.pieces, file.to);
		fine = ctl_file_end(&file, true);
	}
	free(s->sum);
	free(s);
	return fine;
}

/* ---- reading shards ---- */

struct reading {
	const struct ctl_sums_source *source;
	uint32_t piece;
	uint64_t *sum;
	void *bytes[PARALLEL_THREADS];
};

static bool read_bytes(
	const struct ctl_sums_source *s, uint64_t at, void *to, size_t n, struct fault *fault)
{
	if (s->stores)
		return store_read(s->stores, &s->object, at, to, n, fault);
	for (size_t done = 0; done < n;) {
		ssize_t got = pread(s->fd, (char *)to + done, n - done, (off_t)(at + done));

		if (got <= 0)
			return fault_errno(fault, got < 0 ? errno : EIO, "", "%s",
				got < 0 ? strerror(errno) : "ends early");
		done += (size_t)got;
	}
	return true;
}

static bool read_piece(const struct parallel *p, struct fault *fault)
{
	struct reading *r = p->context;
	const struct ctl_sums_source *s = r->source;
	void **bytes = &r->bytes[p->thread];
	uint64_t at = p->i * r->piece, left = s->size - at;
	size_t n = left < r->piece ? (size_t)left : r->piece;

	if (!*bytes && !(*bytes = malloc(r->piece)))
		return fault_memory(fault);
	if (!read_bytes(s, at, *bytes, n, fault))
		return false;
	r->sum[p->i] = sums_piece(*bytes, n);
	if (s->progress)
		ctl_progress_add(s->progress, n);
	return true;
}

uint64_t *ctl_sums_read(const struct ctl_sums_source *source, uint32_t piece, struct fault *fault)
{
	struct reading r = {.source = source, .piece = piece};
	uint64_t pieces = sums_pieces(source->size, piece);
	unsigned threads = source->threads ? source->threads : 1;

	r.sum = calloc(pieces + 1, sizeof(*r.sum));
	if (!r.sum) {
		fault_memory(fault);
		return NULL;
	}
	bool fine = parallel_for(pieces, threads, read_piece, &r, fault) == pieces;

	for (unsigned i = 0; i < PARALLEL_THREADS; i++)
		free(r.bytes[i]);
	if (fine)
		return r.sum;
	free(r.sum);
	return NULL;
}

/* ---- sums of another manifest ---- */

uint64_t *ctl_sums_load(const char *path, const struct sums_head *manifest)
{
	char sums[PATH_MAX];
	FILE *file = sums_path(path, sums, sizeof(sums)) ? fopen(sums, "re") : NULL;
	struct fault fault;
	uint64_t *sum = file ? sums_read(file, manifest, &fault) : NULL;

	if (file)
		fclose(file);
	return sum;
}
