/*
 * Windows are numbered through the sorted shards. So bisection finds a window's shard, and
 * arithmetic its offset. Only two words are stored for each shard.
 */
#include "proto/table.h"

#include <assert.h>

enum { GUESSES = 8 };

/* Asserts the invariants of a numbered table, in constant time. */
static void check(const struct table *table)
{
	assert(table->window_tokens > 0 && table->stride > 0);
	assert(table->first_window && (table->tokens || table->shards == 0));
	assert(table->first_window[0] == 0);
	assert(table->first_window[table->shards] == table->windows);
	assert(table->windows <= table->total_tokens);
}

void table_number(struct table *table)
{
	uint64_t windows = 0, tokens = 0;
	uint64_t step = table->stride < table->window_tokens ? table->stride : table->window_tokens;

	table->short_shards = table->short_tokens = table->tail_tokens = 0;
	for (uint64_t s = 0; s < table->shards; s++) {
		uint64_t has = table->tokens[s];
		uint64_t n = order_shard_windows(has, table->window_tokens, table->stride);

		table->first_window[s] = windows;
		windows += n;
		tokens += has;
		if (n > 0) {
			table->tail_tokens += has - (table->window_tokens + (n - 1) * step);
		} else {
			table->short_shards++;
			table->short_tokens += has;
		}
	}
	table->first_window[table->shards] = windows;
	table->windows = windows;
	table->total_tokens = tokens;
	check(table);
}

/*
 * The last shard whose first window is at or before @window; a shard without windows has the same
 * number as the next. Shards usually have similar lengths, so a few proportional guesses find it,
 * each a cache miss. If they do not, bisection ends the search.
 */
static uint64_t shard_of(const struct table *table, uint64_t window)
{
	uint64_t lo = 0, hi = table->shards, below = 0, above = table->windows;

	assert(hi > 0);
	for (unsigned guesses = 0; hi - lo > 1; guesses++) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (guesses < GUESSES) {
			double part = (double)(window - below) / (double)(above - below);

			/* Rounding may give hi. Any mid between lo and hi is right. */
			mid = lo + (uint64_t)((double)(hi - lo) * part);
			mid = mid <= lo ? lo + 1 : mid >= hi ? hi - 1 : mid;
		}
		if (table->first_window[mid] <= window) {
			lo = mid;
			below = table->first_window[mid];
		} else {
			hi = mid;
			above = table->first_window[mid];
		}
	}
	return lo;
}

static uint64_t slide_of(const struct table *table, const struct order_dataset *order,
	uint64_t seed, uint64_t epoch, uint64_t shard)
{
	if (!order->slide) /* saves the cache miss of reading tokens[] */
		return 0;
	uint64_t slack =
		order_shard_slack(table->tokens[shard], table->window_tokens, table->stride);

	return order_slide(order, seed, epoch, shard, slack);
}

void table_locate(const struct table *table, const struct order_dataset *order, uint64_t seed,
	uint64_t epoch, uint64_t window, uint64_t *shard, uint64_t *offset)
{
	assert(window < table->windows);
	uint64_t s = shard_of(table, window);
	uint64_t at = (window - table->first_window[s]) * table->stride +
		      slide_of(table, order, seed, epoch, s);

	assert(window < table->first_window[s + 1]);
	assert(!order->slide || at <= table->tokens[s] - table->window_tokens);
	*shard = s;
	*offset = at;
}

void table_touching(const struct table *table, const struct order_dataset *order, uint64_t seed,
	uint64_t epoch, uint64_t shard, uint64_t token, uint64_t tokens, uint64_t *first,
	uint64_t *count)
{
	assert(shard < table->shards);
	uint64_t windows = table->first_window[shard + 1] - table->first_window[shard];
	uint64_t slide = slide_of(table, order, seed, epoch, shard);

	*first = table->first_window[shard];
	*count = 0;
	if (windows == 0 || tokens == 0 || token >= table->tokens[shard])
		return;
	if (tokens > table->tokens[shard] - token)
		tokens = table->tokens[shard] - token;
	if (token + tokens <= slide)
		return;

	/* Window j contains [j·stride, j·stride + window_tokens), counted from the slide on. */
	uint64_t at = token < slide ? 0 : token - slide,
		 last = (token + tokens - 1 - slide) / table->stride;
	uint64_t lowest =
		at < table->window_tokens ? 0 : (at - table->window_tokens) / table->stride + 1;

	if (last > windows - 1)
		last = windows - 1;
	if (lowest > last)
		return;
	*first += lowest;
	*count = last - lowest + 1;
}
