#include "client/ctl/offline/plan_line.h"

#include <limits.h>

static const char *dataset_name(const struct plan *p, const struct plan_line *line)
{
	return p->history->cursor.dataset[line->place.dataset].name;
}

static uint64_t token(const struct plan *p, const struct plan_line *line, uint64_t i)
{
	if (p->token_bytes == 2)
		return ((const uint16_t *)line->tokens)[i];
	return ((const uint32_t *)line->tokens)[i];
}

static void put_json_place(struct ctl_out *out, const struct plan *p, const struct plan_line *line)
{
	ctl_put_pair(out, "position", line->position);
	ctl_put(out, ",\"dataset\":");
	ctl_put_string(out, dataset_name(p, line));
	ctl_put(out, ",");
	ctl_put_pair(out, "epoch", line->place.epoch);
	ctl_put(out, ",");
	ctl_put_pair(out, "window", line->place.window);
	ctl_put(out, ",\"shard\":");
	ctl_put_string(out, line->shard);
	ctl_put(out, ",");
	ctl_put_pair(out, "offset", line->offset);
}

/* A viewer finds side files by the path. */
static void put_json_tokens(struct ctl_out *out, const struct plan *p, const struct plan_line *line)
{
	char path[PATH_MAX + 1];

	dataset_shard_path(p->map[line->place.dataset], line->number, path, sizeof(path));
	ctl_put(out, ",\"path\":");
	ctl_put_string(out, path);
	for (uint64_t i = 0; i < p->window_tokens; i++) {
		ctl_put(out, i == 0 ? ",\"tokens\":[" : ",");
		ctl_put_number(out, token(p, line, i));
	}
	ctl_put(out, "]");
}

static void put_json(struct ctl_out *out, const struct plan *p, const struct plan_line *line)
{
	ctl_put(out, "{");
	if (line->padding)
		ctl_put(out, "\"position\":null,\"dataset\":null,\"epoch\":null,\"window\":null,"
			     "\"shard\":null,\"offset\":null");
	else
		put_json_place(out, p, line);
	if (p->ranks) {
		ctl_put(out, ",");
		ctl_put_pair(out, "rank", line->rank);
		ctl_put(out, ",");
		ctl_put_pair(out, "row", line->row);
	}
	if (p->reader && line->padding)
		ctl_put(out, ",\"path\":null,\"tokens\":null");
	else if (p->reader)
		put_json_tokens(out, p, line);
	ctl_put(out, "}\n");
}

enum { EPOCH_WIDTH = 6, RANK_WIDTH = 8, ROW_WIDTH = 5, GAP = 2, SOME_TOKENS = 8 };

static void put_text_place(struct ctl_out *out, const struct plan *p, const struct plan_line *line)
{
	ctl_put_right(out, line->position, p->position_width);
	ctl_put(out, "  ");
	ctl_put_left(out, dataset_name(p, line), p->dataset_width);
	ctl_put_right(out, line->place.epoch, GAP + EPOCH_WIDTH);
	ctl_put_right(out, line->place.window, GAP + p->window_width);
	ctl_put_right(out, line->offset, GAP + p->offset_width);
	ctl_put(out, "  ");
	ctl_put_left(out, line->shard, 0);
}

static void put_text(struct ctl_out *out, const struct plan *p, const struct plan_line *line)
{
	if (p->ranks) {
		ctl_put_right(out, line->rank, RANK_WIDTH);
		ctl_put_right(out, line->row, GAP + ROW_WIDTH);
		ctl_put(out, "  ");
	}
	if (line->padding)
		ctl_put(out, "padding: the stream has ended");
	else
		put_text_place(out, p, line);
	for (uint64_t i = 0; p->reader && !line->padding && i < p->window_tokens && i < SOME_TOKENS;
		i++) {
		ctl_put(out, i == 0 ? "  " : " ");
		ctl_put_number(out, token(p, line, i));
	}
	ctl_put(out,
		p->reader && !line->padding && p->window_tokens > SOME_TOKENS ? " ...\n" : "\n");
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

void plan_measure(struct plan *p, uint64_t last)
{
	const struct cursor *cursor = &p->history->cursor;

	p->position_width = larger(8, ctl_digits(last));
	p->dataset_width = 7;
	p->window_width = 6;
	p->offset_width = 6;
	for (uint32_t d = 0; d < cursor->datasets; d++) {
		p->dataset_width = larger(p->dataset_width, ctl_width(cursor->dataset[d].name));
		p->window_width =
			larger(p->window_width, ctl_digits(order_path_windows(&cursor->order[d])));
		for (uint64_t s = 0; p->map[d] && s < p->map[d]->table.shards; s++)
			p->offset_width =
				larger(p->offset_width, ctl_digits(p->map[d]->table.tokens[s]));
	}
}

static void put_name(struct ctl_out *out, const char *name, size_t width)
{
	ctl_put_left(out, "", width - ctl_width(name));
	ctl_put(out, name);
}

void plan_put_head(struct ctl_out *out, const struct plan *p)
{
	if (p->ranks) {
		put_name(out, "rank", RANK_WIDTH);
		put_name(out, "row", GAP + ROW_WIDTH);
		ctl_put(out, "  ");
	}
	put_name(out, "position", p->position_width);
	ctl_put(out, "  ");
	ctl_put_left(out, "dataset", p->dataset_width);
	put_name(out, "epoch", GAP + EPOCH_WIDTH);
	put_name(out, "window", GAP + p->window_width);
	put_name(out, "offset", GAP + p->offset_width);
	ctl_put(out, p->reader ? "  shard  tokens\n" : "  shard\n");
}

void plan_put(struct ctl_out *out, const struct plan *p, const struct plan_line *line)
{
	(p->json ? put_json : put_text)(out, p, line);
}
