/* Arrow files to write and to read. */
#ifndef TESTS_ARROWS_H
#define TESTS_ARROWS_H

#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "tests/unit/files.h"
#include <errno.h>
#include <inttypes.h>

enum { BATCHES = 3, TOKENS = 7 };

static const uint64_t rows[BATCHES] = {3, 0, 4};

/* Places in the file where tests write other values. Of batches: the first's. */
enum spot {
	FOOTER_ROOT,
	FOOTER_VTABLE,
	FOOTER_VTABLE_BYTES,
	FOOTER_BYTES,
	FOOTER_SCHEMA_SLOT,
	FOOTER_SCHEMA,
	FOOTER_VERSION,
	FOOTER_BATCHES,
	BATCHES_COUNT,
	BLOCK_OFFSET,
	BLOCK_METADATA,
	BLOCK_BODY,
	BLOCK_2_OFFSET,
	SCHEMA_VTABLE,
	SCHEMA_ENDIANNESS,
	SCHEMA_FIELDS,
	SCHEMA_FIELDS_SLOT,
	FIELDS_COUNT,
	FIELDS_0,
	FIELDS_1,
	NAME,
	NAME_COUNT,
	NAME_TEXT,
	TYPE_TYPE,
	TYPE_TYPE_0,
	TYPE,
	TYPE_SLOT,
	DICTIONARY_SLOT,
	BITS,
	PREFIX,
	PREFIX_LENGTH,
	MESSAGE_ROOT,
	MESSAGE_VTABLE,
	MESSAGE_VERSION,
	MESSAGE_TYPE,
	MESSAGE_HEADER,
	MESSAGE_HEADER_SLOT,
	MESSAGE_BODY,
	BATCH_LENGTH,
	BATCH_LENGTH_SLOT,
	NODES,
	NODES_COUNT,
	NODES_SLOT,
	NODE_LENGTH,
	NODE_NULLS,
	BUFFERS,
	BUFFERS_COUNT,
	VALUES_OFFSET,
	VALUES_LENGTH,
	COMPRESSION_SLOT,
	COMPRESSION_CODEC,
	VARIADIC_SLOT,
	FOOTER_LENGTH,
	END_MAGIC,
	SPOTS
};

struct made {
	struct piece p;
	size_t spot[SPOTS];
};

static inline void align(struct piece *p, size_t n)
{
	while (p->n % n != 0)
		piece_number(p, 0, 1);
}

static inline void set(struct piece *p, size_t at, uint64_t value, size_t n)
{
	for (size_t i = 0; i < n; i++, value >>= 8)
		p->at[at + i] = (uint8_t)value;
}

/* A table of @count fields of so many bytes (0: absent), all 0, after its vtable. Where it and they
 * begin. */
static inline size_t put_table(struct piece *p, const uint8_t *bytes, size_t count, size_t *at)
{
	size_t offset = 4, vtable;

	align(p, 8);
	vtable = p->n;
	piece_number(p, 4 + 2 * count, 2);
	piece_number(p, 0, 2);
	for (size_t i = 0; i < count; offset += bytes[i++])
		piece_number(p, bytes[i] ? offset : 0, 2);
	set(p, vtable + 2, offset, 2);
	align(p, 8);
	size_t table = p->n;

	piece_number(p, table - vtable, 4);
	for (size_t i = 0, from = 4; i < count; from += bytes[i++]) {
		at[i] = table + from;
		for (size_t j = 0; j < bytes[i]; j++)
			piece_number(p, 0, 1);
	}
	return table;
}

static inline size_t slot(const struct piece *p, size_t table, unsigned id)
{
	return table - bytes_u32(p->at + table) + 4 + 2 * id;
}

static inline void point(struct piece *p, size_t at, size_t to)
{
	set(p, at, to - at, 4);
}

/* Numbers of 8 bytes, in items of @per of them. */
static inline size_t put_vector(struct piece *p, const uint64_t *numbers, size_t items, size_t per)
{
	align(p, 8);
	piece_number(p, 0, 4);
	piece_number(p, items, 4);
	for (size_t i = 0; i < items * per; i++)
		piece_number(p, numbers[i], 8);
	return p->n - items * per * 8 - 4;
}

/* A string column of @n empty strings, then the tokens: from @first on. */
static inline void put_batch(
	struct made *m, uint64_t n, uint64_t first, uint64_t *block, bool noted)
{
	struct piece *p = &m->p;
	uint64_t values_at = n ? 8 * ((4 * (n + 1) + 7) / 8) : 0,
		 body = values_at + 8 * ((4 * n + 7) / 8);
	size_t begin = p->n, message[4], batch[5], codec[1], spare[SPOTS],
	       *spot = noted ? m->spot : spare;

	piece_number(p, UINT32_MAX, 4);
	piece_number(p, 0, 8);
	size_t table = put_table(p, (const uint8_t[]){2, 1, 4, n ? 8 : 0}, 4, message);

	point(p, begin + 8, table);
	spot[PREFIX] = begin;
	spot[PREFIX_LENGTH] = begin + 4;
	spot[MESSAGE_ROOT] = begin + 8;
	spot[MESSAGE_VTABLE] = table;
	spot[MESSAGE_VERSION] = message[0];
	spot[MESSAGE_TYPE] = message[1];
	spot[MESSAGE_HEADER] = message[2];
	spot[MESSAGE_HEADER_SLOT] = slot(p, table, 2);
	spot[MESSAGE_BODY] = message[3];
	set(p, message[0], 4, 2);
	set(p, message[1], 3, 1);
	if (n)
		set(p, message[3], body, 8);
	table = put_table(p, (const uint8_t[]){n ? 8 : 0, 4, 4, 4, 4}, 5, batch);
	point(p, message[2], table);
	spot[BATCH_LENGTH] = batch[0];
	spot[BATCH_LENGTH_SLOT] = slot(p, table, 0);
	spot[NODES_SLOT] = slot(p, table, 1);
	spot[COMPRESSION_SLOT] = slot(p, table, 3);
	spot[VARIADIC_SLOT] = slot(p, table, 4);
	if (n)
		set(p, batch[0], n, 8);
	size_t vector = put_vector(p, (const uint64_t[]){n, 0, n, 0}, 2, 2);

	point(p, batch[1], vector);
	spot[NODES] = batch[1];
	spot[NODES_COUNT] = vector;
	spot[NODE_LENGTH] = vector + 4 + 16;
	spot[NODE_NULLS] = vector + 4 + 24;
	vector = put_vector(p,
		(const uint64_t[]){
			0, 0, 0, n ? 4 * (n + 1) : 0, 0, 0, values_at, 0, values_at, 4 * n},
		5, 2);
	point(p, batch[2], vector);
	spot[BUFFERS] = batch[2];
	spot[BUFFERS_COUNT] = vector;
	spot[VALUES_OFFSET] = vector + 4 + 64;
	spot[VALUES_LENGTH] = vector + 4 + 72;
	/* These two are there, but their slots say they are absent. */
	point(p, batch[3], put_table(p, (const uint8_t[]){1}, 1, codec));
	spot[COMPRESSION_CODEC] = codec[0];
	point(p, batch[4], put_vector(p, (const uint64_t[]){1}, 1, 1));
	set(p, slot(p, table, 3), 0, 2);
	set(p, slot(p, table, 4), 0, 2);
	align(p, 8);
	set(p, begin + 4, p->n - begin - 8, 4);
	block[0] = begin;
	block[1] = p->n - begin;
	block[2] = n ? body : 0;
	if (n == 0)
		return;
	for (uint64_t i = 0; i < values_at; i++)
		piece_number(p, 0, 1);
	for (uint64_t i = 0; i < n; i++)
		piece_number(p, first + i, 4);
	align(p, 8);
}

static inline size_t put_field(struct made *m, const char *name, unsigned type)
{
	struct piece *p = &m->p;
	size_t field[6], integer[2], dictionary[2], table, *spot = m->spot;

	table = put_table(p, (const uint8_t[]){4, 1, 1, 4, 4, 4}, 6, field);
	align(p, 4);
	point(p, field[0], p->n);
	if (type == 2) {
		spot[NAME] = field[0];
		spot[NAME_COUNT] = p->n;
		spot[NAME_TEXT] = p->n + 4;
		spot[TYPE_TYPE] = field[2];
		spot[TYPE] = field[3];
		spot[TYPE_SLOT] = slot(p, table, 3);
		spot[DICTIONARY_SLOT] = slot(p, table, 4);
	} else {
		spot[TYPE_TYPE_0] = field[2];
	}
	piece_number(p, strlen(name), 4);
	piece_text(p, name);
	set(p, field[2], type, 1);
	point(p, field[3], put_table(p, (const uint8_t[]){4, 1}, 2, integer));
	set(p, integer[0], 32, 4);
	if (type == 2)
		spot[BITS] = integer[0];
	point(p, field[4], put_table(p, (const uint8_t[]){4, 1}, 2, dictionary));
	set(p, slot(p, table, 4), 0, 2);
	set(p, slot(p, table, 5), 0, 2);
	return table;
}

static inline void put_footer(struct made *m, const uint64_t *blocks)
{
	struct piece *p = &m->p;
	size_t begin = p->n, footer[4], schema[2], *spot = m->spot;

	piece_number(p, 0, 4);
	size_t table = put_table(p, (const uint8_t[]){2, 4, 0, 4}, 4, footer);

	point(p, begin, table);
	spot[FOOTER_ROOT] = begin;
	spot[FOOTER_VTABLE] = table;
	spot[FOOTER_VTABLE_BYTES] = slot(p, table, 0) - 4;
	spot[FOOTER_BYTES] = slot(p, table, 0) - 2;
	spot[FOOTER_SCHEMA_SLOT] = slot(p, table, 1);
	spot[FOOTER_VERSION] = footer[0];
	spot[FOOTER_SCHEMA] = footer[1];
	spot[FOOTER_BATCHES] = footer[3];
	set(p, footer[0], 4, 2);
	table = put_table(p, (const uint8_t[]){2, 4}, 2, schema);
	point(p, footer[1], table);
	spot[SCHEMA_VTABLE] = table;
	spot[SCHEMA_ENDIANNESS] = schema[0];
	spot[SCHEMA_FIELDS] = schema[1];
	spot[SCHEMA_FIELDS_SLOT] = slot(p, table, 1);
	align(p, 4);
	spot[FIELDS_COUNT] = p->n;
	point(p, schema[1], p->n);
	piece_number(p, 2, 4);
	spot[FIELDS_0] = p->n;
	spot[FIELDS_1] = p->n + 4;
	piece_number(p, 0, 8);
	point(p, spot[FIELDS_0], put_field(m, "text", 5));
	point(p, spot[FIELDS_1], put_field(m, "tokens", 2));
	spot[BATCHES_COUNT] = put_vector(p, blocks, BATCHES, 3);
	point(p, footer[3], spot[BATCHES_COUNT]);
	spot[BLOCK_OFFSET] = spot[BATCHES_COUNT] + 4;
	spot[BLOCK_METADATA] = spot[BLOCK_OFFSET] + 8;
	spot[BLOCK_BODY] = spot[BLOCK_OFFSET] + 16;
	spot[BLOCK_2_OFFSET] = spot[BLOCK_OFFSET] + 48;
	spot[FOOTER_LENGTH] = p->n;
	piece_number(p, p->n - begin, 4);
	spot[END_MAGIC] = p->n;
	piece_text(p, "ARROW1");
}

/* Token i is 10 + i. */
static inline void make(struct made *m)
{
	uint64_t blocks[3 * BATCHES], first = 10;

	m->p.n = 0;
	piece_bytes(&m->p, "ARROW1\0", 8);
	for (int i = 0; i < BATCHES; first += rows[i++])
		put_batch(m, rows[i], first, blocks + 3 * (size_t)i, i == 0);
	put_footer(m, blocks);
}

/* NULL: @why. */
static inline struct shard *try_open(
	const char *path, const char *column, int *fd, struct fault *fault)
{
	const struct shard_hint hint = {.type = SHARD_U16, .column = column ? column : "tokens"};
	struct shard_facts facts;

	fault->text[0] = 0;
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(*fd >= 0);
	const struct shard_format *f =
		shard_describe(shard_format("arrow"), path, *fd, &hint, &facts, fault);
	struct shard *shard = f ? shard_open(f, path, *fd, &hint, &facts, fault) : NULL;

	if (!shard) {
		assert_true(fault->text[0]);
		assert_null(strchr(fault->text, '\n'));
		close(*fd);
	}
	return shard;
}

static inline void assert_refused(const char *path, const char *column, const char *expected)
{
	struct fault fault;
	int fd;
	struct shard *shard = try_open(path, column, &fd, &fault);

	if (shard)
		fail_msg("is not refused; should be: %s", expected);
	if (!strstr(fault.text, expected))
		fail_msg("\"%s\" is not in \"%s\"", expected, fault.text);
}

#endif
