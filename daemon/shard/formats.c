#include "daemon/shard/format.h"
#include "proto/phrases.h"
#include "proto/words.h"

#include <stdio.h>
#include <string.h>

/* Flat comes last: it accepts any content. */
const struct shard_format *const shard_formats[] = {
	&shard_megatron,
	&shard_npy,
	&shard_llmc,
	&shard_arrow,
	&shard_datatrove,
	&shard_mds,
	&shard_flat,
	NULL,
};

const struct shard_format *shard_format(const char *name)
{
	const struct shard_format *const *f = shard_formats;

	while (*f && strcmp((*f)->name, name) != 0)
		f++;
	return *f;
}

bool columns_take(struct columns *c, const char *name)
{
	static const char *const masks[] = {COLUMNS_MASK};
	unsigned good = strcmp(name, c->wanted ? c->wanted : "tokens") == 0 ? 3
			: !c->wanted && strcmp(name, "input_ids") == 0	    ? 2
									    : 1;
	bool better = good > c->best;

	c->times = better ? 1 : c->times + (good == c->best);
	c->best = better ? good : c->best;
	for (size_t i = 0; !c->mask && i < sizeof(masks) / sizeof(masks[0]); i++)
		if (strcmp(name, masks[i]) == 0)
			c->mask = masks[i];
	return better;
}

void columns_doubt(const struct columns *c, const struct shard_scan *s)
{
	struct shard_facts *facts = s->facts;

	if (c->mask && !facts->note[0] && !s->hint->label_mask &&
		strcmp(c->mask, facts->column) != 0)
		snprintf(facts->note, sizeof(facts->note),
			"column %s is not used: if there is padding or a prompt, it is trained on; "
			"remove it, or set label_mask",
			c->mask);
}

static const struct shard_format *find(const struct bytes *b)
{
	const struct shard_format *const *f = shard_formats;

	while (*f && !((*f)->recognise && (*f)->recognise(b)) &&
		!((*f)->ending && bytes_ending(b->path, (*f)->ending)))
		f++;
	return *f;
}

/* Content comes before names and keys: foreign files are refused under all of them. */
const struct shard_format *shard_recognise(const struct bytes *b, const struct shard_format *format,
	enum shard_type type, struct fault *fault)
{
	const struct shard_companion *companion = side_kind(b->path);
	const char *kind = foreign_kind(b);

	if (!kind && !format)
		format = find(b);
	if (!kind && format && format->raw)
		kind = foreign_to_plain(b, type);
	if (!kind && format)
		return format;
	size_t n = kind ? strcspn(kind, ";") : 0; /* advice comes after it */

	if (kind)
		fault_data(fault, "is %.*s, not a shard of tokens%s; " PHRASE_NOT_SHARD, (int)n,
			kind, kind + n);
	else if (companion)
		fault_data(fault, "is %s, not a shard; give the shard that it belongs to (%s)",
			companion->kind, companion->shard);
	else
		fault_data(fault, "has no known format (" SHARD_FORMATS
				  "; a flat file's name ends in .bin or .npy); " PHRASE_NOT_SHARD
				  "; set `format: flat` only if it holds plain tokens");
	return NULL;
}
