/* Remarks for users about streams and datasets. */
#include "daemon/catalog/opening.h"
#include "proto/words.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	UNSERVED_PART = 20, /* doubt if more than this part of the tokens is never served */
	COPY_LEAST = 1000,  /* tokens; shorter shards may be equal */
};

void dataset_remark(struct dataset *d, int kind, const char *text, ...)
{
	struct remark *all = realloc(d->remark, (d->remarks + 1) * sizeof(*all));
	va_list args;

	if (!all)
		return;
	d->remark = all;
	all += d->remarks++;
	*all = (struct remark){.kind = kind};
	int n = d->config ? snprintf(all->text, sizeof(all->text), "%s: ", d->config->name) : 0;

	va_start(args, text);
	vsnprintf(all->text + n, sizeof(all->text) - (size_t)n, text, args);
	va_end(args);
}

/* ---- doubts by names ---- */

/* What a word in a shard's name, or an ending of it, means. */
static const struct {
	const char *words, *what;
} kinds[] = {
	{WORDS_VALIDATION, "validation data"},
	{" partial tmp temp incomplete download unshuffled ", "a file that is being written"},
	{" copy bak backup old orig ", "a copy"},
	{WORDS_SIDE, "an index or a mask"},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* Index of the kind, or KINDS. */
static unsigned kind_of(const char *name)
{
	for (const char *at = name; *at; at++) {
		char word[16] = " "; /* longer than all of them */
		size_t n = 1;

		for (; isalpha((unsigned char)*at); at++)
			if (n < sizeof(word) - 2)
				word[n++] = (char)tolower((unsigned char)*at);
		word[n] = ' ';
		for (unsigned k = 0; n > 1 && k < KINDS; k++)
			if (strstr(kinds[k].words, word))
				return k;
		if (!*at)
			break;
	}
	/* "part" alone is a word in many names of shards. */
	return strstr(bytes_name(name), ".part.") ? 1 : KINDS;
}

static void doubt_kinds(struct dataset *d)
{
	uint64_t shards = d->list.count, of[KINDS + 1] = {0}, first[KINDS + 1];

	for (uint64_t s = 0; s < shards; s++) {
		unsigned k = kind_of(shard_list_name(&d->list, s));

		if (of[k]++ == 0)
			first[k] = s;
	}
	for (unsigned k = 0; k < KINDS; k++)
		if (of[k] > 0 && of[k] < shards)
			dataset_remark(d, REMARK_DOUBT,
				"%.180s is %s by its name (%" PRIu64 " of %" PRIu64
				" shards); if it does not belong there, move it away",
				shard_list_name(&d->list, first[k]), kinds[k].what, of[k], shards);
}

/* The names are sorted, so those of one list follow each other. */
static void doubt_parts(struct dataset *d)
{
	size_t shared, other;

	for (uint64_t s = 0, n; s < d->list.count; s += n) {
		const char *name = shard_list_name(&d->list, s);
		uint64_t parts = shard_parts(name, &shared, NULL);

		for (n = 1; parts > 0 && s + n < d->list.count; n++) {
			const char *next = shard_list_name(&d->list, s + n);

			if (shard_parts(next, &other, NULL) != parts || other != shared ||
				memcmp(name, next, shared) != 0)
				break;
		}
		if (n < parts) {
			dataset_remark(d, REMARK_DOUBT,
				"%.180s is one of %" PRIu64 " by its name, but there are %" PRIu64
				"; if the others belong to the dataset, add them",
				name, parts, n);
			return;
		}
	}
}

void dataset_doubt_names(struct dataset *d)
{
	doubt_kinds(d);
	doubt_parts(d);
	if (d->list.unfinished)
		dataset_remark(d, REMARK_DOUBT,
			"tokctl pack or tokenize has not finished an output in %.300s, so shards "
			"are missing; repeat its command (of tokenize, with --resume)",
			d->list.root);
}

/* ---- a dataset ---- */

struct digest {
	uint64_t value, shard;
	const struct dataset *dataset;
};

static int by_value(const void *a, const void *b)
{
	const struct digest *x = a, *y = b;

	if (x->value != y->value)
		return x->value < y->value ? -1 : 1;
	if (x->dataset != y->dataset)
		return x->dataset < y->dataset ? -1 : 1;
	return x->shard < y->shard ? -1 : x->shard > y->shard;
}

/* 0: not known, or shards may be equal by chance. */
static uint64_t tokens_of(const struct dataset *d, uint64_t s)
{
	return d->table.tokens[s] < COPY_LEAST ? 0 : d->entry[s].digest;
}

/* A hash that links to one file share. Of objects, and of a manifest's files, it is the path's. */
static uint64_t file_of(const struct dataset *d, uint64_t s)
{
	const struct entry *e = &d->entry[s];
	char path[PATH_MAX + 1];

	if (e->id > 0)
		return e->id;
	shard_list_path(&d->list, s, path, sizeof(path));
	return order_digest_add(0, path, e->bytes);
}

void dataset_remarks(struct dataset *d)
{
	const struct table *w = &d->table;
	/* Gaps of a stride above the window are meant. */
	bool tails = !d->config->slide && w->stride <= w->window_tokens;
	uint64_t lost = w->short_tokens + (tails ? w->tail_tokens : 0);

	dataset_doubt_names(d);
	if (w->windows > 0 && d->config->weight > 0 && lost > w->total_tokens / UNSERVED_PART)
		dataset_remark(d, REMARK_DOUBT,
			"%.1f %% of its %" PRIu64 " tokens are never served: %" PRIu64
			" of its %" PRIu64 " shards are shorter than a window of %" PRIu64
			" tokens%s; use longer shards, or a smaller seq_len%s",
			100.0 * (double)lost / (double)w->total_tokens, w->total_tokens,
			w->short_shards, w->shards, w->window_tokens,
			tails ? ", and what is left at the end of a shard is left out" : "",
			tails ? ", or slide: true, which leaves out other ends in each epoch" : "");
	if (dataset_is_part(d))
		dataset_remark(
			d, REMARK_NOTE, "windows %" PRIu64 " of %" PRIu64, d->windows, w->windows);
}

/* ---- datasets that have the same files ---- */

/* Whether shard @s is one file under two paths. */
static bool is_link(const struct dataset *a, const struct dataset *b, uint64_t s)
{
	char x[PATH_MAX + 1], y[PATH_MAX + 1];

	shard_list_path(&a->list, s, x, sizeof(x));
	shard_list_path(&b->list, s, y, sizeof(y));
	uint64_t id = bytes_id_at(NULL, x);

	return id > 2 && id == bytes_id_at(NULL, y);
}

bool dataset_same_files(const struct dataset *a, const struct dataset *b)
{
	uint64_t n = a->table.shards, s = 0;

	if (n != b->table.shards ||
		memcmp(a->table.tokens, b->table.tokens, n * sizeof(*a->table.tokens)) != 0)
		return false;
	while (s < n && file_of(a, s) == file_of(b, s))
		s++;
	/* Of a manifest's files only the paths are known. With equal lengths, two files tell. */
	return s == n || ((a->listed || b->listed) && is_link(a, b, s) && is_link(a, b, n - 1));
}

/* Two streams may have the same files of one path, and datasets parts of the same files: see
 * check_parts(). */
static bool is_meant(const struct dataset *d, const struct dataset *e)
{
	bool parts = dataset_is_part(d) || dataset_is_part(e),
	     path = bytes_id_at(NULL, d->list.root) == bytes_id_at(NULL, e->list.root);

	return d != e && (parts || (path && d->stream != e->stream)) && dataset_same_files(d, e);
}

/*
 * Remarks the first shard of @d that is equal to another of its own or of an earlier dataset. The
 * @n of @all are sorted. @files: they are one file, otherwise they have the same tokens. Returns
 * whether another dataset has it.
 */
static bool doubt_equal(
	struct dataset *d, const struct digest *all, uint64_t n, bool files, bool others)
{
	const struct digest *first = NULL;
	const struct dataset *e, *last = NULL;
	uint64_t equal = 0;
	bool meant = false;

	for (const struct digest *is = all + 1; is < all + n; is++) {
		e = is[-1].dataset;
		if (is->dataset != d || is->value != is[-1].value || (e != d && !others))
			continue;
		if (!files)
			meant = file_of(d, is->shard) == file_of(e, is[-1].shard);
		else if (e != last)
			meant = is_meant(d, e);
		last = e;
		if (meant)
			continue;
		equal++;
		first = first && first->shard < is->shard ? first : is;
	}
	if (!first)
		return false;
	e = first[-1].dataset;
	bool one = d->stream == e->stream;

	dataset_remark(d, REMARK_DOUBT,
		"shard %.150s %s %.150s%s%s%s%s%s (%" PRIu64 " of %" PRIu64
		" shards are such), so its tokens %s served twice; leave one out",
		shard_list_name(&d->list, first->shard),
		files ? "is the same file as" : "has the same tokens as",
		shard_list_name(&e->list, first[-1].shard), d == e ? "" : " of dataset ",
		d == e ? "" : e->config->name, one ? "" : " of stream ", one ? "" : e->stream->name,
		files	    ? ""
		: d->listed ? ", by the manifest"
			    : ", wherever both were sampled",
		equal, d->table.shards, files || d->listed ? "are" : "may be");
	return d != e;
}

bool catalog_remarks(const struct catalog *c, bool files, bool saved, struct fault *fault)
{
	const struct config_stream *told = NULL; /* of the last pair: one each is enough */
	const struct dataset *end = c->dataset + c->datasets;
	uint64_t shards = 0, n = 0;

	for (const struct dataset *d = c->dataset; d < end; d++)
		shards += d->table.shards;
	struct digest *all = malloc(shards * sizeof(*all));

	if (!all)
		return fault_memory(fault);
	for (const struct dataset *d = c->dataset; d < end; d++)
		for (uint64_t s = 0; s < d->table.shards; s++) {
			all[n] = (struct digest){files ? file_of(d, s) : tokens_of(d, s), s, d};
			n += all[n].value != 0;
		}
	qsort(all, n, sizeof(*all), by_value);
	for (struct dataset *d = c->dataset; d < end; d++)
		if ((d->bucket || !saved) && doubt_equal(d, all, n, files, told != d->stream))
			told = d->stream;
	free(all);
	return true;
}

/* ---- a stream ---- */

void stream_notes(const struct stream *s, stream_teller *tell, void *context)
{
	bool raw = false, masks = false, masked = false;

	for (uint32_t i = 0; i < s->config->datasets; i++) {
		const struct dataset *d = &s->dataset[i];

		for (uint32_t r = 0; r < d->remarks; r++)
			tell(context, s, d->remark[r].kind != REMARK_NOTE, d->remark[r].text);
		raw |= d->format->raw;
		masks |= d->hint.loss_mask;
		masked |= d->masks || d->bounds; /* tokens outside documents are masked */
	}
	if (masks && !masked)
		tell(context, s, true,
			"loss_mask: none of its shards has a mask, so every token counts; add the "
			"masks, or remove loss_mask");
	/* Shards that state nothing are believed: at least their ids could be compared. */
	if (raw && !s->config->has_vocab)
		tell(context, s, true,
			"its shards do not state what they hold, and unknown ids cannot be found: "
			"add `vocab: N` to the stream, the number of your tokenizer's ids");
}
