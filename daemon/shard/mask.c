#include "daemon/shard/format.h"
#include "daemon/shard/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Writes the path of the mask of the shard at @path to @to; "": the format has no masks. */
static bool mask_path(const struct shard_format *format, const char *path,
	const struct shard_hint *hint, char *to, size_t to_bytes, struct fault *fault)
{
	const struct shard_side_name *side = format->mask;

	to[0] = 0;
	if (!hint->label_mask) {
		if (side && !bytes_side_path(path, side->shard, side->side, to, to_bytes))
			to[0] = 0;
		return true;
	}
	int n = snprintf(to, to_bytes, "%s%s%s", hint->label_mask,
		bytes_ends_in(hint->label_mask, "/") ? "" : "/", path + hint->root_bytes);

	return (n >= 0 && (size_t)n < to_bytes) ||
	       fault_errno(fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
}

uint32_t mask_side_id(
	const struct shard_format *format, const struct shard_hint *hint, const char *shard)
{
	const struct objects *objects = hint->objects;
	char path[PATH_MAX];
	struct object object;
	struct fault fault;
	struct stat st;

	if (!mask_path(format, shard, hint, path, sizeof(path), &fault) || !path[0])
		return 0;
	if (objects)
		return objects->find(objects->context, path, &object) ? bytes_object_id(&object)
								      : 0;
	return stat(path, &st) == 0 ? bytes_id(&st) : 0;
}

static bool check_size(struct mask *mask, uint64_t tokens, struct fault *fault)
{
	const struct bytes *b = mask->file;

	if (npy_recognise(b))
		return npy_bools(b, tokens, &mask->data_at, fault) ||
		       fault_prefix(fault, "%s: ", mask->name);
	return b->size == tokens || fault_set(fault, FAULT_DATA, "",
					    "%s: its size is %" PRIu64 " bytes; must be %" PRIu64
					    ", one for each token of the shard",
					    mask->name, b->size, tokens);
}

bool mask_open(const struct shard_format *format, const struct bytes *b,
	const struct shard_hint *hint, uint64_t tokens, struct mask **mask, struct fault *fault)
{
	char at[PATH_MAX];

	*mask = NULL;
	if (!mask_path(format, b->path, hint, at, sizeof(at), fault))
		return false;
	const char *slash = strrchr(at, '/');
	struct mask *m = at[0] ? calloc(1, sizeof(*m)) : NULL;

	if (!m)
		return !at[0] || fault_memory(fault);
	/* In label_mask it has the shard's own name, so say that it is the mask. */
	snprintf(m->name, sizeof(m->name), "%s%.60s", hint->label_mask ? "its loss mask " : "",
		slash ? slash + 1 : at);
	bool fine = bytes_open_side(b, at, &m->file, fault);

	if (fine && !m->file)
		fine = !hint->label_mask ||
		       fault_set(fault, FAULT_DATA, "",
			       "has no loss mask: %.300s does not exist; label_mask must have one "
			       "for each shard of the dataset",
			       at);
	else
		fine = fine && check_size(m, tokens, fault);
	if (fine && m->file) {
		m->file->path = NULL; /* it is here only */
		*mask = m;
	} else {
		mask_close(m);
	}
	return fine;
}

void mask_close(struct mask *mask)
{
	if (!mask)
		return;
	bytes_close(mask->file);
	free(mask);
}

bool mask_read(
	const struct mask *mask, uint64_t token, uint64_t n, uint8_t *to, struct fault *fault)
{
	uint8_t bits = 0;
	uint64_t i = 0;

	if (!bytes_read(mask->file, mask->data_at + token, to, n, fault))
		return fault_prefix(fault, "%s: ", mask->name);
	for (; i < n; i++)
		bits |= to[i];
	if (bits <= 1)
		return true;
	for (i = 0; i < n - 1 && to[i] <= 1;) /* clients can write to @to */
		i++;
	return fault_set(fault, FAULT_DATA, "",
		"%s: the value of token %" PRIu64 " is %u; must be 0 or 1", mask->name, token + i,
		to[i]);
}
