/* The message for each of many broken Arrow files. */
#include "tests/unit/arrows.h"

/* ---- broken ones ---- */

static const struct {
	enum spot spot;
	unsigned bytes;
	uint64_t value;
	const char *why;
} broken[] = {
	{END_MAGIC, 1, 'B', "ends with 'BRROW1' instead of ARROW1: it is truncated"},
	{END_MAGIC, 6, 0, "' instead of ARROW1: it is truncated"},
	{FOOTER_LENGTH, 4, 0, "footer length is 0; must be 1 to"},
	{FOOTER_LENGTH, 4, UINT32_MAX, "footer length is -1; must be 1 to"},
	{FOOTER_LENGTH, 4, INT32_MAX, "footer length is 2147483647; must be 1 to"},
	{FOOTER_LENGTH, 4, 3, "footer: its root is at byte 0, outside its 3 bytes"},
	{FOOTER_ROOT, 4, 0, "footer: offset of its root is 0 at byte 0; must be at least 4"},
	{FOOTER_ROOT, 4, UINT32_MAX, "footer: offset of its root is 4294967295"},
	{FOOTER_ROOT, 4, 100000,
		"footer: offset of its root is 100000 at byte 0; must be at least 4 and stay "
		"within"},
	{FOOTER_VTABLE, 4, INT32_MAX, "footer: vtable of its root is at byte -"},
	{FOOTER_VTABLE, 4, 0x80000000, "footer: vtable of its root is at byte 21474836"},
	{FOOTER_VTABLE_BYTES, 2, 3, "footer: vtable size of its root is 3"},
	{FOOTER_VTABLE_BYTES, 2, 65535, "footer: vtable size of its root is 65535"},
	{FOOTER_BYTES, 2, 3, "footer: table size of its root is 3"},
	{FOOTER_BYTES, 2, 65535, "footer: table size of its root is 65535"},
	{FOOTER_BYTES, 2, 4,
		"footer: version is at byte 4 of its table; must be within bytes 4 to 4"},
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
	{BLOCK_OFFSET, 8, 0,
		"footer: offset of batch 0 is 0; must be a multiple of 8, at least 8 (the end"},
	{BLOCK_OFFSET, 8, 12, "footer: offset of batch 0 is 12; must be a multiple of 8"},
	{BLOCK_OFFSET, 8, UINT64_MAX - 7, "footer: offset of batch 0 is -8"},
	{BLOCK_OFFSET, 8, INT64_MAX - 7, "footer: offset of batch 0 is 9223372036854775800"},
	{BLOCK_2_OFFSET, 8, 8,
		"footer: offset of batch 2 is 8; must be a multiple of 8, at least "}, /* the first
											  again */
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
	{BLOCK_BODY, 8, 24, "batch 0: bodyLength is 32; must be 24, as in the footer"},
	{SCHEMA_VTABLE, 4, INT32_MAX, "footer: vtable of schema is at byte -"},
	{SCHEMA_ENDIANNESS, 2, 1, "footer: endianness is 1, big; must be 0, little"},
	{SCHEMA_ENDIANNESS, 2, 2, "footer: endianness is 2; must be 0, little"},
	{SCHEMA_FIELDS, 4, 3, "footer: offset of fields is 3"},
	{SCHEMA_FIELDS_SLOT, 2, 0, "no column is called 'tokens'"},
	{FIELDS_COUNT, 4, 1, "no column is called 'tokens'; set `column` to one of: text"},
	{FIELDS_COUNT, 4, UINT32_MAX, "footer: fields has 4294967295 items of 4 bytes"},
	{FIELDS_0, 4, 0, "footer: offset of a column is 0"},
	{FIELDS_1, 4, UINT32_MAX, "footer: offset of a column is 4294967295"},
	{NAME, 4, UINT32_MAX, "footer: offset of a column's name is 4294967295"},
	{NAME_COUNT, 4, UINT32_MAX, "footer: a column's name has 4294967295 items of 1 bytes"},
	{TYPE_TYPE, 1, 5,
		"footer: column 'tokens' is of type string; tokens must be a column of "
		"integers, or of lists"},
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
		"batch 0: length is 3 rows, but the values of column 'tokens' have 12 bytes, which "
		"is 1 of u64"},
	{PREFIX, 4, 0, "batch 0: its metadata's length is 0"},
	{PREFIX, 4, 0xfffffffe, "batch 0: its metadata's length is -2; must be 1 to"},
	{PREFIX_LENGTH, 4, 0, "batch 0: its metadata's length is 0"},
	{PREFIX_LENGTH, 4, UINT32_MAX, "batch 0: its metadata's length is -1"},
	{PREFIX_LENGTH, 4, 4096, "batch 0: its metadata's length is 4096; must be 1 to"},
	{PREFIX_LENGTH, 4, 1, "batch 0: its root is at byte 8, outside its 9 bytes"},
	{MESSAGE_ROOT, 4, 1 << 20, "batch 0: offset of its root is 1048576 at byte 8"},
	{MESSAGE_VTABLE, 4, 0x7fff, "batch 0: vtable of its root is at byte -"},
	{MESSAGE_VERSION, 2, 1, "batch 0: version is 1; must be 3 or 4"},
	{MESSAGE_TYPE, 1, 2, "batch 0: header_type is 2; must be 3, a record batch"},
	{MESSAGE_TYPE, 1, 0, "batch 0: header_type is 0"},
	{MESSAGE_HEADER, 4, 0, "batch 0: offset of header is 0"},
	{MESSAGE_HEADER_SLOT, 2, 0, "batch 0: header is absent"},
	{MESSAGE_BODY, 8, UINT64_MAX, "batch 0: bodyLength is -1; must be 32, as in the footer"},
	{BATCH_LENGTH, 8, UINT64_MAX, "batch 0: length is -1; must be 0 or more"},
	{BATCH_LENGTH, 8, 4, "batch 0: length of column 'tokens' is 3; must be 4, as the batch's"},
	{BATCH_LENGTH, 8, INT64_MAX, "batch 0: length of column 'tokens' is 3"},
	{BATCH_LENGTH_SLOT, 2, 0,
		"batch 0: length of column 'tokens' is 3; must be 0, as the batch's"},
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
		"batch 0: length is 3 rows, but the values of column 'tokens' have 11 bytes, which "
		"is 2 of u32"},
	{VALUES_LENGTH, 8, 0,
		"batch 0: length is 3 rows, but the values of column 'tokens' have 0 bytes"},
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
		"no column is called 'x'; set `column` to one of: text, tokens");
	assert_refused(((struct files *)*state)->path, "text", "column 'text' is of type string");
	set(&m.p, m.spot[COMPRESSION_SLOT], 20, 2);
	set(&m.p, m.spot[COMPRESSION_CODEC], 1, 1);
	assert_refused(
		files_put(*state, "a.arrow", m.p.at, m.p.n), NULL, "its body is compressed (ZSTD)");
}

/*
 * Columns nested @levels deep; each has the next one @wide times as a child, which takes a forger
 * few bytes.
 */
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
	point(p, top + 8, put_table(p, (const uint8_t[]){4, 0, 1, 4}, 4, field));
	align(p, 4);
	point(p, field[0], p->n);
	piece_number(p, 6, 4);
	piece_text(p, "tokens");
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
		"its schema has more than 65536 columns, nested ones included");
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

/* With any bit flipped, it is rejected, or all its tokens are in the file. */
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

/*
 * A list skips IBM's table of counts next to directories of shards, but rejects it without shards.
 */
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
	assert_non_null(strstr(fault.text, "is a table of counts, but its shard"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, files_set_up, files_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_broken),
		TEST(test_nested_schemas),
		TEST(test_sizes),
		TEST(test_any_bit),
		TEST(test_directory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
