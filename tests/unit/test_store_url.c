/* URLs of objects: hosts, paths and regions by config and environment; what is refused. */
#include "daemon/store/url.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct config_store stores[] = {
	{.name = "lab", .endpoint = "https://minio.lab:9000", .region = "lab-1"},
	{.name = "near", .endpoint = "http://[::1]:80/", .style = CONFIG_STYLE_VIRTUAL},
	{.name = "far", .profile = "nothing", .style = CONFIG_STYLE_PATH},
};
static const struct config config = {.store = stores, .stores = 3};

static const struct good {
	const char *url, *name, *host, *path, *region;
	bool tls;
} good[] = {
	{"s3://corpus/web/x.bin", "s3://corpus", "corpus.s3.us-east-1.amazonaws.com", "/web/x.bin",
		"us-east-1", true},
	{"s3://corpus", "s3://corpus", "corpus.s3.us-east-1.amazonaws.com", "/", "us-east-1", true},
	{"lab://corpus/a b+=&?~\xc3\xbc//x", "lab://corpus", "minio.lab:9000",
		"/corpus/a%20b%2B%3D%26%3F~%C3%BC//x", "lab-1", true},
	{"lab://corpus/../%41*'()", "lab://corpus", "minio.lab:9000",
		"/corpus/../%2541%2A%27%28%29", "lab-1", true},
	{"near://b-1/k", "near://b-1", "b-1.[::1]", "/k", "us-east-1", false},
	{"far://a.b.c/k", "far://a.b.c", "s3.us-east-1.amazonaws.com", "/a.b.c/k", "us-east-1",
		true},
	{"gs://corpus/x", "gs://corpus", "storage.googleapis.com", "/corpus/x", "auto", true},
	{"https://Data.example.org:8443/a/b c", "https://Data.example.org:8443",
		"Data.example.org:8443", "/a/b%20c", "us-east-1", true},
	{"https://example.org:443/a", "https://example.org:443", "example.org", "/a", "us-east-1",
		true},
};

static const struct bad {
	const char *url, *wrong; /* a part of the message */
} bad[] = {
	{"s3://", "has no bucket"},
	{"s3:///web/", "has no bucket"},
	{"s3://Corpus/web/", "capitals"},
	{"s3://my.corpus/web/", "style: path"},
	{"s3://AKIA:SECRET@corpus/web/", "without user, password or port"},
	{"s3://a/", "3 to 63"},
	{"http://example.org/", "http:// is not read"},
	{"lap://corpus/", "did you mean lab?"},
	{"https://user:SECRET@example.org/", "token_file"},
	{"https://example.org/a?sig=SECRET", "query_file"},
	{"https:///a", "no valid host"},
	{"https://example.org:0/a", "no valid host"},
	{"s3://corpus/a\nb", "control characters"},
	{"averyveryveryveryveryverylongscheme://b/", "unknown"},
};

static void clear(void)
{
	static const char *const names[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION",
		"AWS_DEFAULT_REGION", "AWS_PROFILE"};

	for (int i = 0; i < 5; i++)
		unsetenv(names[i]);
	setenv("HOME", "/nonexistent", 1);
}

static void test_good_urls(void **state)
{
	(void)state;
	clear();
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct url_place place;
		struct fault fault;
		const char *key;
		char path[URL_PATH_BYTES];

		if (!url_place(&config, good[i].url, &place, &key, &fault))
			fail_msg("%s", fault.text);
		assert_string_equal(place.name, good[i].name);
		assert_string_equal(place.host, good[i].host);
		size_t n = url_path(&place, key, path);

		assert_int_equal(n, strlen(path));
		assert_string_equal(path, good[i].path);
		assert_string_equal(place.region, good[i].region);
		assert_int_equal(place.tls, good[i].tls);
	}
}

static void test_bad_urls(void **state)
{
	(void)state;
	clear();
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct url_place place;
		struct fault fault;
		const char *key;

		assert_false(url_place(&config, bad[i].url, &place, &key, &fault));
		assert_int_equal(fault.code, FAULT_ARGUMENT);
		if (!strstr(fault.text, bad[i].wrong) || strstr(fault.text, "SECRET"))
			fail_msg("%s: %s", bad[i].url, fault.text);
	}
}

static void test_the_environment_fills_gaps(void **state)
{
	struct url_place place;
	struct fault fault;
	const char *key;

	(void)state;
	clear();
	setenv("AWS_DEFAULT_REGION", "cn-north-1", 1);
	assert_true(url_place(NULL, "s3://corpus/k", &place, &key, &fault));
	assert_string_equal(place.host, "corpus.s3.cn-north-1.amazonaws.com.cn");
	setenv("AWS_REGION", "eu-west-1", 1);
	setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000", 1);
	assert_true(url_place(NULL, "s3://my.corpus/k", &place, &key, &fault));
	assert_string_equal(place.host, "127.0.0.1:9000");
	assert_string_equal(place.base, "/my.corpus/");
	assert_string_equal(place.region, "eu-west-1");
	assert_false(place.tls);
	setenv("AWS_ENDPOINT_URL_S3", "https://s3.lab/", 1);
	assert_true(url_place(NULL, "s3://corpus/k", &place, &key, &fault));
	assert_string_equal(place.host, "s3.lab");
	assert_true(url_place(&config, "lab://corpus/k", &place, &key, &fault));
	assert_string_equal(place.host, "minio.lab:9000");
	setenv("AWS_ENDPOINT_URL_S3", "minio:9000", 1);
	assert_false(url_place(NULL, "s3://corpus/k", &place, &key, &fault));
	assert_non_null(strstr(fault.text, "AWS_ENDPOINT_URL_S3"));
	clear();
}

static void test_queries(void **state)
{
	char query[64] = "";

	(void)state;
	assert_true(url_query(query, sizeof(query), "list-type", "2"));
	assert_true(url_query(query, sizeof(query), "prefix", "a/b &"));
	assert_string_equal(query, "list-type=2&prefix=a%2Fb%20%26");
	assert_false(url_query(query, sizeof(query), "x", "0123456789"));
}

static void test_the_longest_key(void **state)
{
	char url[2000] = "s3://corpus/", path[URL_PATH_BYTES];
	struct url_place place;
	struct fault fault;
	const char *key;

	(void)state;
	clear();
	memset(url + strlen(url), '\x80', URL_KEY_BYTES);
	assert_true(url_place(NULL, url, &place, &key, &fault));
	assert_int_equal(url_path(&place, key, path), 1 + 3 * URL_KEY_BYTES);
	strcat(url, "x");
	assert_false(url_place(NULL, url, &place, &key, &fault));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good_urls),
		cmocka_unit_test(test_bad_urls),
		cmocka_unit_test(test_the_environment_fills_gaps),
		cmocka_unit_test(test_queries),
		cmocka_unit_test(test_the_longest_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
