/* Pages of listings: of AWS, Ceph, MinIO and GCS, unusual keys, and what is refused. */
#include "daemon/store/list_page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define AWS                                                                                        \
	"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult "                           \
	"xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><Prefix>w</Prefix>"
#define OBJECT(key, size, etag)                                                                    \
	"<Contents><Key>" key "</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"        \
	"<ETag>" etag "</ETag><Size>" size "</Size><Owner><ID>1</ID><Key>x</Key></Owner>"          \
	"<StorageClass>STANDARD</StorageClass></Contents>"
#define END "</ListBucketResult>"

static void put(char *line, size_t bytes, const struct object *o)
{
	size_t n = strlen(line);

	snprintf(line + n, bytes - n, "%s %llu %s;", o->key, (unsigned long long)o->size,
		o->etag ? o->etag : "-");
}

struct seen {
	char line[4096];
	unsigned most;
};

static bool see(void *context, const struct object *object)
{
	struct seen *seen = context;

	put(seen->line, sizeof(seen->line), object);
	return --seen->most > 0;
}

static const struct good {
	const char *xml, *line, *next;
	bool truncated;
} good[] = {
	{AWS "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
	     "<NextContinuationToken>1/x+=&amp;</NextContinuationToken>" OBJECT("w/a", "12",
		     "&quot;abc-16&quot;") OBJECT("w/%C3%BC+%2B%25.bin", "0", "\"d\"") END,
		"w/a 12 abc-16;w/\xc3\xbc +%.bin 0 d;", "1/x+=&", true},
	/* the encoding after the keys; the namespace with a prefix */
	{"<s3:ListBucketResult xmlns:s3='x'><s3:Contents><s3:Key>a%20b</s3:Key><s3:Size>1</s3:Size>"
	 "</s3:Contents><s3:EncodingType>url</s3:EncodingType></s3:ListBucketResult>",
		"a b 1 -;", "", false},
	/* a server that does not encode */
	{AWS OBJECT("a+b%20&amp;&lt;", "1", "\"e\"") END, "a+b%20&< 1 e;", "", false},
	/* not sorted, twice, "..", "//", a directory: as the store gives them */
	{AWS OBJECT("b", "1", "\"e\"") OBJECT("b", "2", "\"f\"") OBJECT("../a", "1", "\"e\"")
			OBJECT("a//c/", "0", "W/\"weak\"") END,
		"b 1 e;b 2 f;../a 1 e;a//c/ 0 W/\"weak\";", "", false},
	{AWS END, "", "", false},
};

static const struct bad {
	const char *xml, *text;
} bad[] = {
	{"", "not XML"},
	{"<html><body>Sign in</body></html>", "<html>, not a listing"},
	{AWS OBJECT("a", "1", "\"e\""), "not XML"},
	{AWS OBJECT("a", "-1", "\"e\"") END, "not a number"},
	{AWS OBJECT("a", "99999999999999999999", "\"e\"") END, "not a number"},
	{AWS "<Contents><Key>a</Key></Contents>" END, "without a key or a size"},
	{"<!DOCTYPE x [<!ENTITY a 'aaaa'>]>" AWS OBJECT("&a;", "1", "\"e\"") END, "document type"},
	{AWS "<EncodingType>url</EncodingType>" OBJECT("a%2", "1", "\"e\"") END,
		"not percent-encoded"},
	{AWS "<EncodingType>url</EncodingType>" OBJECT("a%00b", "1", "\"e\"") END,
		"not percent-encoded"},
	{"<ListBucketResult><a><a><a><a><a><a><a><a>", "nested"},
	{"<Error><Code>SlowDown</Code></Error>", "<Error>, not a listing"},
};

static void test_good_pages(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct seen seen = {.most = 100};
		struct list_page page;
		struct fault fault, before;

		memset(&fault, 1, sizeof(fault));
		before = fault;
		if (!list_page(
			    good[i].xml, strlen(good[i].xml), NULL, "", see, &seen, &page, &fault))
			fail_msg("%zu: %s", i, fault.text);
		assert_string_equal(seen.line, good[i].line);
		assert_string_equal(page.next, good[i].next);
		assert_int_equal(page.truncated, good[i].truncated);
		assert_false(page.ended);
		assert_memory_equal(&fault, &before, sizeof(fault));
	}
}

/* Callers skip the prefix of each key. */
static void test_keys_without_the_prefix(void **state)
{
	const char *xml = AWS OBJECT("web/a", "1", "\"e\"") OBJECT("we", "1", "\"e\"") END;
	struct seen seen = {.most = 100};
	struct list_page page;
	struct fault fault;

	(void)state;
	assert_false(list_page(xml, strlen(xml), NULL, "web/", see, &seen, &page, &fault));
	assert_int_equal(fault.code, FAULT_DATA);
	assert_string_equal(seen.line, "web/a 1 e;");
}

static void test_bad_pages(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct seen seen = {.most = 100};
		struct list_page page;
		struct fault fault;

		assert_false(list_page(
			bad[i].xml, strlen(bad[i].xml), NULL, "", see, &seen, &page, &fault));
		if (fault.code != FAULT_DATA || !strstr(fault.text, bad[i].text))
			fail_msg("%zu: %s", i, fault.text);
	}
}

static void test_the_caller_can_stop(void **state)
{
	struct seen seen = {.most = 2};
	struct list_page page;
	struct fault fault;

	(void)state;
	assert_true(
		list_page(good[3].xml, strlen(good[3].xml), NULL, "", see, &seen, &page, &fault));
	assert_string_equal(seen.line, "b 1 e;b 2 f;");
	assert_true(page.ended && page.objects == 2);
}

static void test_long_keys(void **state)
{
	static char xml[8192];
	struct list_page page;
	struct fault fault;

	(void)state;
	for (int n = LIST_KEY_BYTES; n <= 3 * LIST_KEY_BYTES + 1; n += LIST_KEY_BYTES / 2 + 1) {
		struct seen seen = {.most = 1};
		char *end = stpcpy(xml, AWS "<Contents><Size>1</Size><Key>");

		memset(end, 'k', (size_t)n);
		strcpy(end + n, "</Key></Contents>" END);
		assert_int_equal(list_page(xml, strlen(xml), NULL, "", see, &seen, &page, &fault),
			n == LIST_KEY_BYTES);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good_pages),
		cmocka_unit_test(test_keys_without_the_prefix),
		cmocka_unit_test(test_bad_pages),
		cmocka_unit_test(test_the_caller_can_stop),
		cmocka_unit_test(test_long_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
