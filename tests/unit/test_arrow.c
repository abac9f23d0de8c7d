/*
 * Arrow IPC files: what is read from a good one, and the line that each of many broken ones gets.
 * The files are put together here byte by byte, so that each field can be made wrong; what pyarrow
 * writes is read in tests/python.
 */
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

static void align(struct piece *p, size_t n)
{
	while (p->n % n != 0)
		piece_number(p, 0, 1);
}

static void set(struct piece *p, size_t at, uint64_t value, size_t n)
{
	for (size_t i = 0; i < n; i++, value >>= 8)
		p->at[at + i] = (uint8_t)value;
}

/* A table of @count fields of so many bytes (0: absent), all 0, after its vtable. Where it and they
 * begin. */
static size_t put_table(struct piece *p, const uint8_t *bytes, size_t count, size_t *at)
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

static size_t slot(const struct piece *p, size_t table, unsigned id)
{
	return table - bytes_u32(p->at + table) + 4 + 2 * id;
}

static void point(struct piece *p, size_t at, size_t to)
{
	set(p, at, to - at, 4);
}

/* Numbers of 8 bytes, in items of @per of them. */
static size_t put_vector(struct piece *p, const uint64_t *numbers, size_t items, size_t per)
{
	align(p, 8);
	piece_number(p, 0, 4);
	piece_number(p, items, 4);
	for (size_t i = 0; i < items * per; i++)
		piece_number(p, numbers[i], 8);
	return p->n - items * per * 8 - 4;
}

/* A string column of @n empty strings, then the tokens: from @first on. */
static void put_batch(struct made *m, uint64_t n, uint64_t first, uint64_t *block, bool noted)
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

static size_t put_field(struct made *m, const char *name, unsigned type)
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

static void put_footer(struct made *m, const uint64_t *blocks)
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
static void make(struct made *m)
{
	uint64_t blocks[3 * BATCHES], first = 10;

	m->p.n = 0;
	piece_bytes(&m->p, "ARROW1\0", 8);
	for (int i = 0; i < BATCHES; first += rows[i++])
		put_batch(m, rows[i], first, blocks + 3 * (size_t)i, i == 0);
	put_footer(m, blocks);
}

/* NULL: @why. */
static struct shard *try_open(const char *path, const char *column, int *fd, struct fault *fault)
{
	const struct shard_hint hint = {.type = SHARD_U16, .column = column};
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

static void assert_refused(const char *path, const char *column, const char *expected)
{
	struct fault fault;
	int fd;
	struct shard *shard = try_open(path, column, &fd, &fault);

	if (shard)
		fail_msg("is not refused; should be: %s", expected);
	if (!strstr(fault.text, expected))
		fail_msg("\"%s\" is not in \"%s\"", expected, fault.text);
}

static void test_good(void **state)
{
	struct made m;
	struct fault fault;
	uint32_t out[16], at[16];
	int fd;

	make(&m);
	for (int named = 0; named < 2; named++) {
		struct shard *shard = try_open(files_put(*state, "a.arrow", m.p.at, m.p.n),
			named ? "tokens" : NULL, &fd, &fault);

		if (!shard)
			fail_msg("%s", fault.text);
		assert_int_equal(shard->facts.tokens, TOKENS);
		assert_int_equal(shard->facts.documents, BATCHES);
		assert_int_equal(shard->facts.type, SHARD_U32);
		assert_false(shard->facts.plain);
		for (uint64_t from = 0; from <= TOKENS; from++) {
			const struct shard_place place[] = {
				{.token = from}, shard_find(shard, from)};

			assert_int_equal(place[1].token, from);
			assert_int_equal(place[1].tokens, from < 3 ? 3 - from : TOKENS - from);
			for (uint64_t n = 0; from + n <= TOKENS; n++) {
				assert_true(shard_read(shard, from, n, out, &fault));
				for (uint64_t i = 0; i < n; i++)
					assert_int_equal(out[i], 10 + from + i);
				for (int found = 0; found < 2 && files_try(fd); found++) {
					memset(out, 0, sizeof(out));
					assert_true(shard_try(shard, place[found], n, out));
					for (uint64_t i = 0; i < n; i++)
						assert_int_equal(out[i], 10 + from + i);
				}
				bool crosses = from < 3 && from + n > 3;

				assert_int_equal(
					shard_documents(shard, from, n, at, 16, &fault), crosses);
				if (crosses)
					assert_int_equal(at[0], 3 - from);
			}
		}
		shard_close(shard);
		close(fd);
	}
}

/* What Arrow before 0.15 wrote: no mark before a message's length. */
static void test_old_messages(void **state)
{
	struct made m;
	struct fault fault;
	int fd;

	make(&m);
	/* The length moves up; what points at the root stays, so the first 4 bytes are the length
	 * alone. */
	uint32_t length = bytes_u32(m.p.at + m.spot[PREFIX_LENGTH]),
		 root = bytes_u32(m.p.at + m.spot[MESSAGE_ROOT]);

	set(&m.p, m.spot[PREFIX], length + 4, 4);
	set(&m.p, m.spot[PREFIX_LENGTH], root + 4, 4);
	struct shard *shard =
		try_open(files_put(*state, "a.arrow", m.p.at, m.p.n), NULL, &fd, &fault);

	if (!shard)
		fail_msg("%s", fault.text);
	assert_int_equal(shard->facts.tokens, TOKENS);
	shard_close(shard);
	close(fd);
}

/* ---- broken ones ---- */

static const struct {
	enum spot spot;
	unsigned bytes;
	uint64_t value;
	const char *why;
} broken[] = {
	{END_MAGIC, 1, 'B', "magic at its end is not ARROW1 but 'BRROW1': it is cut short"},
	{END_MAGIC, 6, 0, "magic at its end"},
	{FOOTER_LENGTH, 4, 0, "footer length is 0; must be 1 to"},
	{FOOTER_LENGTH, 4, UINT32_MAX, "footer length is -1; must be 1 to"},
	{FOOTER_LENGTH, 4, INT32_MAX, "footer length is 2147483647; must be 1 to"},
	{FOOTER_LENGTH, 4, 3, "footer: its root is at byte 0 of it; it has 3 bytes"},
	{FOOTER_ROOT, 4, 0, "footer: offset of its root is 0 at byte 0; must be 4 or more"},
	{FOOTER_ROOT, 4, UINT32_MAX, "footer: offset of its root is 4294967295"},
	{FOOTER_ROOT, 4, 100000,
		"footer: offset of its root is 100000 at byte 0; must be 4 or more and stay "
		"within"},
	{FOOTER_VTABLE, 4, INT32_MAX, "footer: vtable of its root is at byte -"},
	{FOOTER_VTABLE, 4, 0x80000000, "footer: vtable of its root is at byte 21474836"},
	{FOOTER_VTABLE_BYTES, 2, 3, "footer: vtable size of its root is 3"},
	{FOOTER_VTABLE_BYTES, 2, 65535, "footer: vtable size of its root is 65535"},
	{FOOTER_BYTES, 2, 3, "footer: table size of its root is 3"},
	{FOOTER_BYTES, 2, 65535, "footer: table size of its root is 65535"},
	{FOOTER_BYTES, 2, 4, "footer: version is at byte 4 of its table; must be within 4 to 4"},
	{FOOTER_SCHEMA_SLOT, 2, 0, "footer: schema is absent"},
	{FOOTER_SCHEMA_SLOT, 2, 2, "footer: schema is at byte 2 of its table"},
	{FOOTER_SCHEMA_SLOT, 2, 12, "footer: schema is at byte 12 of its table"},
	{FOOTER_SCHEMA, 4, 1 << 30, "footer: offset of schema is 1073741824"},
	{FOOTER_VERSION, 2, 2, "footer: version is 2; must be 3 or 4 (V4 or V5)"},
	{FOOTER_VERSION, 2, 5, "footer: version is 5"},
	{FOOTER_VERSION, 2, 0xffff, "footer: version is -1"},
	{FOOTER_BATCHES, 4, UINT32_MAX, "footer: offset of recordBatches is 4294967295"},
	{BATCHES_COUNT, 4, UINT32_MAX,
		"footer: recordBatches has 4294967295 items of 24 bytes; the bytes after it hold "
		"at most 3"},
	{BATCHES_COUNT, 4, 4, "footer: recordBatches has 4 items of 24 bytes"},
	{BLOCK_OFFSET, 8, 0, "footer: offset of batch 0 is 0; must be a multiple of 8, 8 (where"},
	{BLOCK_OFFSET, 8, 12, "footer: offset of batch 0 is 12; must be a multiple of 8"},
	{BLOCK_OFFSET, 8, UINT64_MAX - 7, "footer: offset of batch 0 is -8"},
	{BLOCK_OFFSET, 8, INT64_MAX - 7, "footer: offset of batch 0 is 9223372036854775800"},
	{BLOCK_2_OFFSET, 8, 8,
		"footer: offset of batch 2 is 8; must be a multiple of 8, "}, /* the first again */
	{BLOCK_METADATA, 4, 0, "footer: metaDataLength of batch 0 is 0"},
	{BLOCK_METADATA, 4, 8,
		"footer: metaDataLength of batch 0 is 8; must be a multiple of 8, more than 8"},
	{BLOCK_METADATA, 4, 20, "footer: metaDataLength of batch 0 is 20"},
	{BLOCK_METADATA, 4, 0x80000000, "footer: metaDataLength of batch 0 is -2147483648"},
	{BLOCK_METADATA, 4, 0x7ffffff8, "footer: metaDataLength of batch 0 is 2147483640"},
	{BLOCK_METADATA, 4, 16, "batch 0: its metadata's length is"},
	{BLOCK_BODY, 8, UINT64_MAX, "footer: bodyLength of batch 0 is -1"},
	{BLOCK_BODY, 8, 1 << 20, "footer: bodyLength of batch 0 is 1048576"},
	{BLOCK_BODY, 8, INT64_MAX - 7, "footer: bodyLength of batch 0 is 9223372036854775800"},
	{BLOCK_BODY, 8, 33, "footer: bodyLength of batch 0 is 33"},
	{BLOCK_BODY, 8, 24, "batch 0: bodyLength is 32; must be 24, the footer's"},
	{SCHEMA_VTABLE, 4, INT32_MAX, "footer: vtable of schema is at byte -"},
	{SCHEMA_ENDIANNESS, 2, 1, "footer: endianness is 1, big; must be 0, little"},
	{SCHEMA_ENDIANNESS, 2, 2, "footer: endianness is 2; must be 0, little"},
	{SCHEMA_FIELDS, 4, 3, "footer: offset of fields is 3"},
	{SCHEMA_FIELDS_SLOT, 2, 0,
		"no column is called tokens or input_ids, and 0 are of integers"},
	{FIELDS_COUNT, 4, 1,
		"and 0 are of integers; say which holds the tokens with `column:`; its columns "
		"are: text"},
	{FIELDS_COUNT, 4, UINT32_MAX, "footer: fields has 4294967295 items of 4 bytes"},
	{FIELDS_0, 4, 0, "footer: offset of a column is 0"},
	{FIELDS_1, 4, UINT32_MAX, "footer: offset of a column is 4294967295"},
	{NAME, 4, UINT32_MAX, "footer: offset of a column's name is 4294967295"},
	{NAME_COUNT, 4, UINT32_MAX, "footer: a column's name has 4294967295 items of 1 bytes"},
	{TYPE_TYPE, 1, 5,
		"footer: column 'tokens' is of type string; tokens must be a flat column of "
		"integers"},
	{TYPE_TYPE, 1, 3, "footer: column 'tokens' is of type float"},
	{TYPE_TYPE, 1, 12, "footer: column 'tokens' is of type list"},
	{TYPE_TYPE, 1, 0, "footer: type of column 'tokens' is 0; must be 1 to 26"},
	{TYPE_TYPE, 1, 27, "footer: type of column 'tokens' is 27"},
	{TYPE_TYPE_0, 1, 255, "footer: type of column 'text' is 255"},
	{TYPE_TYPE_0, 1, 2, "batch 0: buffers has 5 items; its columns need 4"},
	{TYPE_TYPE_0, 1, 24, "batch 0: variadicBufferCounts has 0 items; its columns need 1"},
	{TYPE, 4, 1 << 24, "footer: offset of a column's type is 16777216"},
	{TYPE_SLOT, 2, 0, "footer: a column's type is absent"},
	{DICTIONARY_SLOT, 2, 14, "footer: column 'tokens' is of type int, dictionary-encoded"},
	{BITS, 4, 0, "footer: bitWidth of an int is 0; must be 8, 16, 32 or 64"},
	{BITS, 4, 24, "footer: bitWidth of an int is 24"},
	{BITS, 4, UINT32_MAX, "footer: bitWidth of an int is -1"},
	{BITS, 4, 64,
		"batch 0: length is 3 rows; the values of column 'tokens' have 12 bytes, which is "
		"1 of u64"},
	{PREFIX, 4, 0, "batch 0: its metadata's length is 0"},
	{PREFIX, 4, 0xfffffffe, "batch 0: its metadata's length is -2; must be 1 to"},
	{PREFIX_LENGTH, 4, 0, "batch 0: its metadata's length is 0"},
	{PREFIX_LENGTH, 4, UINT32_MAX, "batch 0: its metadata's length is -1"},
	{PREFIX_LENGTH, 4, 4096, "batch 0: its metadata's length is 4096; must be 1 to"},
	{PREFIX_LENGTH, 4, 1, "batch 0: its root is at byte 8 of it; it has 9 bytes"},
	{MESSAGE_ROOT, 4, 1 << 20, "batch 0: offset of its root is 1048576 at byte 8"},
	{MESSAGE_VTABLE, 4, 0x7fff, "batch 0: vtable of its root is at byte -"},
	{MESSAGE_VERSION, 2, 1, "batch 0: version is 1; must be 3 or 4"},
	{MESSAGE_TYPE, 1, 2, "batch 0: header_type is 2; must be 3, a record batch"},
	{MESSAGE_TYPE, 1, 0, "batch 0: header_type is 0"},
	{MESSAGE_HEADER, 4, 0, "batch 0: offset of header is 0"},
	{MESSAGE_HEADER_SLOT, 2, 0, "batch 0: header is absent"},
	{MESSAGE_BODY, 8, UINT64_MAX, "batch 0: bodyLength is -1; must be 32, the footer's"},
	{BATCH_LENGTH, 8, UINT64_MAX, "batch 0: length is -1; must be 0 or more"},
	{BATCH_LENGTH, 8, 4, "batch 0: length of column 'tokens' is 3; must be 4, the batch's"},
	{BATCH_LENGTH, 8, INT64_MAX, "batch 0: length of column 'tokens' is 3"},
	{BATCH_LENGTH_SLOT, 2, 0,
		"batch 0: length of column 'tokens' is 3; must be 0, the batch's"},
	{NODES, 4, 1 << 16, "batch 0: offset of nodes is 65536"},
	{NODES_COUNT, 4, 1, "batch 0: nodes has 1 items; its columns need 2"},
	{NODES_COUNT, 4, 1 << 28,
		"batch 0: nodes has 268435456 items of 16 bytes"}, /* times 16 is 2^32 */
	{NODES_SLOT, 2, 0, "batch 0: nodes has 0 items; its columns need 2"},
	{NODE_LENGTH, 8, 2, "batch 0: length of column 'tokens' is 2; must be 3"},
	{NODE_LENGTH, 8, UINT64_MAX, "batch 0: length of column 'tokens' is -1; must be 3"},
	{NODE_NULLS, 8, 1, "batch 0: null_count of column 'tokens' is 1; must be 0"},
	{NODE_NULLS, 8, UINT64_MAX, "batch 0: null_count of column 'tokens' is -1"},
	{BUFFERS, 4, UINT32_MAX - 3, "batch 0: offset of buffers is 4294967292"},
	{BUFFERS_COUNT, 4, 4, "batch 0: buffers has 4 items; its columns need 5"},
	{BUFFERS_COUNT, 4, UINT32_MAX, "batch 0: buffers has 4294967295 items of 16 bytes"},
	{VALUES_OFFSET, 8, UINT64_MAX - 7,
		"batch 0: values of column 'tokens' are 12 bytes from byte -8"},
	{VALUES_OFFSET, 8, 24, "batch 0: values of column 'tokens' are 12 bytes from byte 24"},
	{VALUES_OFFSET, 8, 20, "batch 0: values of column 'tokens' are 12 bytes from byte 20"},
	{VALUES_LENGTH, 8, 17, "batch 0: values of column 'tokens' are 17 bytes from byte 16"},
	{VALUES_LENGTH, 8, UINT64_MAX, "batch 0: values of column 'tokens' are -1 bytes"},
	{VALUES_LENGTH, 8, 11,
		"batch 0: length is 3 rows; the values of column 'tokens' have 11 bytes, which is "
		"2 of u32"},
	{VALUES_LENGTH, 8, 0,
		"batch 0: length is 3 rows; the values of column 'tokens' have 0 bytes"},
	{COMPRESSION_SLOT, 2, 20, "batch 0: its body is compressed (LZ4_FRAME)"},
	{VARIADIC_SLOT, 2, 24, "batch 0: variadicBufferCounts has 1 items; its columns need 0"},
};

static void test_broken(void **state)
{
	struct made m;

	for (size_t i = 0; i < COUNT(broken); i++) {
		make(&m);
		set(&m.p, m.spot[broken[i].spot], broken[i].value, broken[i].bytes);
		assert_refused(files_put(*state, "a.arrow", m.p.at, m.p.n), NULL, broken[i].why);
	}
	make(&m);
	assert_refused(files_put(*state, "a.arrow", m.p.at, m.p.n), "x",
		"no column is called 'x'; its columns are: text, tokens");
	assert_refused(((struct files *)*state)->path, "text", "column 'text' is of type string");
	set(&m.p, m.spot[COMPRESSION_SLOT], 20, 2);
	set(&m.p, m.spot[COMPRESSION_CODEC], 1, 1);
	assert_refused(
		files_put(*state, "a.arrow", m.p.at, m.p.n), NULL, "its body is compressed (ZSTD)");
}

/* Columns nest in columns, @levels deep; each has the next one @wide times, which costs a forger
 * nothing. */
static void put_nested(struct piece *p, size_t levels, size_t wide)
{
	size_t footer[4], schema[2], field[6], integer[1], begin, top, at;

	p->n = 0;
	piece_bytes(p, "ARROW1\0", 8);
	begin = p->n;
	piece_number(p, 0, 4);
	point(p, begin, put_table(p, (const uint8_t[]){2, 4}, 2, footer));
	set(p, footer[0], 4, 2);
	point(p, footer[1], put_table(p, (const uint8_t[]){0, 4}, 2, schema));
	align(p, 4);
	top = p->n;
	point(p, schema[1], top);
	piece_number(p, 2, 4);
	piece_number(p, 0, 8);
	at = top + 4;
	for (size_t n = 1; levels-- > 0; n = wide) {
		size_t table =
			put_table(p, (const uint8_t[]){0, 0, 1, 0, 0, levels ? 4 : 0}, 6, field);

		for (size_t i = 0; i < n; i++)
			point(p, at + 4 * i, table);
		set(p, field[2], 13, 1);
		if (levels) {
			align(p, 4);
			point(p, field[5], p->n);
			piece_number(p, wide, 4);
			at = p->n;
			piece_number(p, 0, 4);
			for (size_t i = 1; i < wide; i++)
				piece_number(p, 0, 4);
		}
	}
	point(p, top + 8, put_table(p, (const uint8_t[]){0, 0, 1, 4}, 4, field));
	set(p, field[2], 2, 1);
	point(p, field[3], put_table(p, (const uint8_t[]){4}, 1, integer));
	set(p, integer[0], 32, 4);
	piece_number(p, p->n - begin, 4);
	piece_text(p, "ARROW1");
}

static void test_nested_schemas(void **state)
{
	struct piece p;
	struct fault fault;
	int fd;

	put_nested(&p, 64, 1);
	struct shard *shard = try_open(files_put(*state, "a.arrow", p.at, p.n), NULL, &fd, &fault);

	if (!shard)
		fail_msg("%s", fault.text);
	shard_close(shard);
	close(fd);
	put_nested(&p, 65, 1);
	assert_refused(files_put(*state, "a.arrow", p.at, p.n), NULL,
		"its schema has more than 64 levels");
	put_nested(&p, 60, 2); /* 2^60 of them */
	assert_refused(files_put(*state, "a.arrow", p.at, p.n), NULL,
		"its schema has more than 65536 columns, nested ones counted");
}

static void test_sizes(void **state)
{
	struct made m;
	struct fault fault;
	int fd;

	make(&m);
	for (size_t n = 0; n < m.p.n; n++)
		assert_null(try_open(files_put(*state, "a.arrow", m.p.at, n), NULL, &fd, &fault));
}

/* With any bit another, it is refused, or its tokens are all in the file. */
static void test_any_bit(void **state)
{
	struct made m;
	unsigned opened = 0;

	make(&m);
	for (size_t i = 0; i < 8 * m.p.n; i++) {
		struct fault fault;
		uint32_t out[2 * TOKENS], at[2 * TOKENS];
		int fd;

		m.p.at[i / 8] ^= (uint8_t)(1 << i % 8);
		struct shard *shard =
			try_open(files_put(*state, "a.arrow", m.p.at, m.p.n), NULL, &fd, &fault);

		m.p.at[i / 8] ^= (uint8_t)(1 << i % 8);
		if (!shard)
			continue;
		opened++;
		assert_true(shard->facts.tokens <= TOKENS);
		assert_true(shard_read(shard, 0, shard->facts.tokens, out, &fault) ||
			    fault.code == FAULT_TOKEN);
		assert_true(
			shard_documents(shard, 0, shard->facts.tokens, at, COUNT(at), &fault) >= 0);
		shard_close(shard);
		close(fd);
	}
	assert_true(opened > 0); /* padding, other columns' buffers, and tokens themselves */
}

/* IBM's table of counts is passed over beside the directories of shards, but not where there are
 * none. */
static void test_directory(void **state)
{
	struct files *f = *state;
	struct shard_list list;
	struct made m;
	struct fault fault;

	make(&m);
	assert_int_equal(mkdir(files_path(f, "web"), 0755), 0);
	assert_int_equal(mkdir(files_path(f, "meta"), 0755), 0);
	files_put(f, "web/a.arrow", m.p.at, m.p.n);
	files_put(f, "meta/combined_counts.csv", "x", 1);
	assert_true(shard_list_read(&list, f->directory, &fault));
	assert_int_equal(list.count, 1);
	assert_string_equal(shard_list_name(&list, 0), "web/a.arrow");
	shard_list_free(&list);
	assert_int_equal(unlink(files_path(f, "web/a.arrow")), 0);
	assert_false(shard_list_read(&list, f->directory, &fault));
	assert_non_null(
		strstr(fault.text, "is a table of counts, but no shard that it belongs to"));
}

int main(void)
{
	const struct CMUnitTest all[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, files_set_up, files_tear_down)
		TEST(test_good),
		TEST(test_old_messages),
		TEST(test_broken),
		TEST(test_nested_schemas),
		TEST(test_sizes),
		TEST(test_any_bit),
		TEST(test_directory),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}
