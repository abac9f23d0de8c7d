/* The inputs of `tokctl pack`: shards of any format, as one row of tokens. */
#include "client/ctl/offline/shards.h"
#include "daemon/catalog/parallel_for.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- a source ---- */

/* Puts @path before the fault's text, unless it begins with it, or with another URL as a store's
 * faults do. Always false. */
static bool fail_at(const char *path, struct fault *fault)
{
	bool named = url_text_is(path)
			     ? strncmp(fault->text, path, strcspn(path, ":") + strlen("://")) == 0
			     : ctl_input_text(path, fault->text) != fault->text;

	return named ? false : fault_prefix(fault, "%s: ", path);
}

static bool fail(const struct pack_source *s, struct fault *fault)
{
	char path[PATH_MAX + 1];

	return fail_at(ctl_place_path(s->place, s->shard, path), fault);
}

/* A hash of what differs if the open file or a side file was replaced. The store compares an
 * object's ETag with each answer. */
static uint64_t identify(const struct shard *shard)
{
	const struct shard_facts *f = &shard->facts;
	struct stat st;
	uint64_t file = fstat(shard->bytes->fd, &st) == 0 ? bytes_id(&st) : 0;

	return order_derive(file, f->tokens, f->type, f->index, f->bounds);
}

static bool is_same(const struct pack_source *s, const struct shard *shard, struct fault *fault)
{
	if (identify(shard) == s->identity)
		return true;
	fault_set(fault, FAULT_CHANGED, "",
		"the file or a side file has changed since packing began (size or time)");
	return fail(s, fault);
}

/* Opens a source. @token_bytes: least width of its tokens, or 0. NULL: @fault names it. */
static struct shard *open_source(const struct pack *p, const struct pack_source *s,
	uint32_t token_bytes, struct fault *fault)
{
	struct ctl_input input = ctl_input_at(s->place, &p->input);
	struct shard *shard = NULL;
	char file[PATH_MAX + 1];

	input.hint.token_bytes = token_bytes;
	shard_list_path(&s->place->set.list, s->shard, file, sizeof(file));
	if (ctl_place_pinned(s->place, s->shard, fault)) /* it must be the same at each read */
		shard = shard_open(input.format, file, -1, &input.hint, true, fault);
	if (!shard)
		fail(s, fault);
	return shard;
}

/* Opens a source for its facts. As in the daemon, what states no type must look like tokens of the
 * type that it is read as. */
static bool find_source(const struct parallel *parallel, struct fault *fault)
{
	struct pack *p = parallel->context;
	struct pack_source *s = &p->source[parallel->i];
	const struct ctl_input input = ctl_input_at(s->place, &p->input);
	const struct shard_hint *hint = &input.hint;
	char file[PATH_MAX + 1];
	struct shard *shard = open_source(p, s, 0, fault);
	struct sample *sample =
		shard && !hint->has_type ? sample_read(shard, &(struct fault){0}) : NULL;
	bool fine = shard && (!sample || sample->kind <= SAMPLE_DOUBT);

	if (shard && !fine) {
		fault_set(fault, FAULT_ARGUMENT, "input-dtype",
			"%.*s; give --input-dtype, the type of the inputs' tokens",
			(int)strcspn(sample->text, ";"), sample->text);
		fail(s, fault);
	}
	free(sample);
	if (fine) {
		const struct shard_facts *f = &shard->facts;
		const struct shard_format *format = shard->format;

		shard_list_path(&s->place->set.list, s->shard, file, sizeof(file));
		s->tokens = f->tokens;
		s->token_bytes = f->token_bytes;
		s->identity = identify(shard);
		s->sample_tokens = format->mixes_rows ? f->sample_tokens : SHARD_UNKNOWN;
		s->has[PACK_UNINDEXED] = f->documents == SHARD_UNKNOWN;
		s->has[PACK_DOCUMENTS] =
			!hint->documents && (side_id(SIDE_BOUNDS, format, hint, file) ||
						    (!s->has[PACK_UNINDEXED] && f->documents > 1));
		s->has[PACK_OUTSIDE] = shard->map.outside > 0;
		s->has[PACK_PADDING] = f->padding > 0;
		s->has[PACK_MASK] = side_id(SIDE_MASK, format, hint, file);
		if (f->note[0] && f->padding == 0 && !atomic_exchange(&p->noted, true))
			ctl_note("%s: %s", ctl_place_path(s->place, s->shard, file), f->note);
	}
	shard_close(shard);
	ctl_progress_add(1);
	return fine;
}

/* ---- all sources ---- */

/* A shard of two arguments would be packed twice. Its inode or URL identifies it. */
static bool is_first(struct pack *p, const struct ctl_place *place, uint64_t i, struct fault *fault)
{
	char key[PATH_MAX + 1];
	struct stat st;

	if (stat(ctl_place_path(place, i, key), &st) == 0)
		snprintf(key, sizeof(key), "%lu:%lu", st.st_dev, st.st_ino);
	const json_t *before = json_object_get(p->seen, key);

	if (before && p->place + json_integer_value(before) != place)
		return fault_set(fault, FAULT_ARGUMENT, "",
			"%s: is in two arguments, %s and %s; give each shard once",
			shard_list_name(&place->set.list, i),
			p->place[json_integer_value(before)].path, place->path);
	if (before && p->twice++ == 0) /* the daemon serves them, too */
		ctl_note("%s: is the same file as another of %s, so its tokens are packed twice",
			shard_list_name(&place->set.list, i), place->path);
	return json_object_set_new_nocheck(p->seen, key, json_integer(place - p->place)) == 0 ||
	       fault_memory(fault);
}

/* Lists the sources at @path. */
static bool add_place(struct pack *p, const char *path, struct fault *fault)
{
	struct ctl_place *place = &p->place[p->places];

	if (!ctl_place_open(place, p->input.stores, path, NULL, NULL, fault))
		return fail_at(path, fault);
	p->places++;
	/* The names of the packed files will not tell. */
	if (place->set.list.count > 1 || place->set.list.unfinished)
		dataset_doubt_names(&place->set);
	for (uint32_t r = 0; r < place->set.remarks; r++)
		ctl_note("%s: %s", path, place->set.remark[r].text);
	if (ctl_place_threads(place) > p->threads)
		p->threads = ctl_place_threads(place);
	for (uint64_t i = 0; i < place->set.list.count; i++) {
		if (!ctl_grow((void **)&p->source, p->sources, sizeof(*p->source)))
			return fault_memory(fault);
		p->source[p->sources++] = (struct pack_source){.place = place, .shard = i};
		if (!is_first(p, place, i, fault))
			return false;
	}
	return true;
}

/* Samples are documents unless those of all inputs are as long: one shard cannot tell. */
static void join_samples(struct pack *p)
{
	const struct pack_source *first = NULL;
	bool *joined = &p->input.hint.joined;

	for (size_t i = 0; i < p->sources; i++)
		if (p->source[i].sample_tokens != SHARD_UNKNOWN) {
			first = first ? first : &p->source[i];
			*joined |= p->source[i].sample_tokens != first->sample_tokens;
		}
	for (size_t i = 0; *joined && i < p->sources; i++)
		if (p->source[i].sample_tokens != SHARD_UNKNOWN) {
			p->source[i].has[PACK_UNINDEXED] = false;
			p->source[i].has[PACK_DOCUMENTS] = !p->input.hint.documents;
		}
}

bool pack_find_sources(struct pack *p, char *const *path, int n, struct fault *fault)
{
	bool fine = (p->place = calloc((size_t)n, sizeof(*p->place))) || fault_memory(fault);

	p->seen = json_object();
	for (int i = 0; fine && i < n; i++)
		fine = add_place(p, path[i], fault);
	ctl_progress_begin("looking at inputs", "shards", p->sources);
	fine = fine && parallel_for(p->sources, p->threads, find_source, p, fault) == p->sources;
	ctl_progress_end();
	join_samples(p);
	for (size_t i = 0; fine && i < p->sources; i++) {
		p->source[i].begin = p->tokens;
		p->tokens += p->source[i].tokens;
		for (unsigned t = 0; t < PACK_TRAITS; t++)
			if (p->source[i].has[t] && !p->first[t])
				p->first[t] = &p->source[i];
	}
	return fine;
}

/* ---- reading ---- */

/* A source that is read. */
struct reading {
	const struct pack *p;
	const struct pack_source *s;
	struct shard *shard;
	uint32_t *tokens, *end; /* [CTL_DIGEST_TOKENS] */
	pack_take *take;
	void *context;
};

/* Can all of the tokens be stored? They are those from @token of the source on. */
static bool check_tokens(const struct reading *r, uint64_t token, uint64_t n, struct fault *fault)
{
	bool narrow = r->p->token_bytes == 2, megatron = r->p->format == PACK_MEGATRON;
	uint32_t most = narrow ? UINT16_MAX : megatron ? INT32_MAX : UINT32_MAX;
	uint64_t good = tokens_first_above(r->tokens, n, sizeof(*r->tokens), most);

	return good == n ||
	       fault_set(fault, FAULT_DATA, "",
		       "token %" PRIu64 " is %" PRIu32 "; must be at most %" PRIu32 " for %s",
		       token + good, r->tokens[good], most,
		       narrow ? "--dtype u16; give --dtype u32" : "--format megatron (31 bits)");
}

/* Lists where documents end in (token, token + n] of the source. Returns their number. */
static uint64_t find_ends(const struct reading *r, uint64_t token, uint64_t n)
{
	bool last = token + n == r->s->tokens;
	uint64_t ends = 0;

	if (!pack_keeps_documents(r->p))
		return 0;
	if (!r->s->has[PACK_UNINDEXED]) /* also a boundary at the end of the range */
		ends = shard_documents(r->shard, token, n + !last, r->end, (uint32_t)n);
	else if (r->p->has_eos)
		for (uint64_t i = 0; i + last < n; i++)
			if (r->tokens[i] == r->p->eos)
				r->end[ends++] = (uint32_t)i + 1;
	if (last)
		r->end[ends++] = (uint32_t)n;
	return ends;
}

/* Reads tokens [token, to) of the source. */
static bool read_source(struct reading *r, uint64_t token, uint64_t to, struct fault *fault)
{
	uint64_t n, most = 1 << 16; /* grows, as who looks for a boundary reads little */

	for (; token < to; token += n, most = n < CTL_DIGEST_TOKENS ? 2 * n : n) {
		n = to - token < most ? to - token : most;
		if (!shard_read(r->shard, token, n, r->tokens, fault) ||
			!check_tokens(r, token, n, fault))
			return fail(r->s, fault);
		if (!r->take(r->context, r->tokens, n, r->end, find_ends(r, token, n), fault))
			return false;
	}
	return true;
}

bool pack_read(const struct pack *p, const struct pack_source *s, uint64_t begin, uint64_t end,
	pack_take *take, void *context, struct fault *fault)
{
	struct reading r = {.p = p,
		.tokens = malloc(CTL_DIGEST_TOKENS * sizeof(*r.tokens)),
		.end = malloc(CTL_DIGEST_TOKENS * sizeof(*r.end)),
		.take = take,
		.context = context};
	bool fine = (r.tokens && r.end) || fault_memory(fault);

	for (; fine && begin < end; s++) {
		uint64_t after = s->begin + s->tokens, to = end < after ? end : after;

		if (to <= begin)
			continue;
		r.s = s;
		r.shard = open_source(p, s, sizeof(uint32_t), fault);
		fine = r.shard && is_same(s, r.shard, fault) &&
		       read_source(&r, begin - s->begin, to - s->begin, fault) &&
		       is_same(s, r.shard, fault);
		shard_close(r.shard);
		begin = to;
	}
	free(r.tokens);
	free(r.end);
	return fine;
}
