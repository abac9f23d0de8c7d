/*
 * bench-get URL BYTES IN_FLIGHT SECONDS: what signed range GETs cost at least.
 *
 * The prototype of the daemon's fetch thread, and its baseline: one thread, libcurl's multi socket
 * interface, epoll, IN_FLIGHT handles that each get BYTES at a random offset of one object. Nothing
 * is shared, merged or repeated. Answers are counted, and their bodies copied into one buffer.
 *
 * URL is http[s]://HOST[:PORT]/BUCKET/KEY, percent-encoded. AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY and AWS_REGION sign; without a key the GETs are anonymous. SSL_CERT_FILE
 * names a CA bundle. Prints one line of JSON; cpu_us is user and system time per GET.
 */
#include <curl/curl.h>
#include <errno.h>
#include <nettle/base16.h>
#include <nettle/hmac.h>
#include <nettle/sha2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST_IN_FLIGHT = 1024, SAMPLES = 1 << 20, EVENTS = 64 };
#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

struct get {
	CURL *easy;
	struct curl_slist *headers;
	char *body;
	size_t n;
	double from;
};

static struct {
	const char *url, *path; /* the path of @url */
	char host[256];
	const char *access_key, *secret_key, *region;
	uint8_t signing_key[32];
	char day[9]; /* of signing_key */
	long long bytes, size;
	CURLM *multi;
	int epoll;
	double timer; /* when libcurl wants to be called; 0: not */
	unsigned long long gets, failed, received;
	long last_status;
	double until;
	float took_ms[SAMPLES];
} bench;

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void stop(const char *what, const char *why)
{
	fprintf(stderr, "bench-get: %s: %s\n", what, why);
	exit(1);
}

static void check(CURLcode code, const char *what)
{
	if (code != CURLE_OK)
		stop(what, curl_easy_strerror(code));
}

static void check_multi(CURLMcode code, const char *what)
{
	if (code != CURLM_OK)
		stop(what, curl_multi_strerror(code));
}

/* ---- the signature, version 4 ---- */

static void hmac(const void *key, size_t key_bytes, const char *text, uint8_t out[32])
{
	struct hmac_sha256_ctx c;

	hmac_sha256_set_key(&c, key_bytes, key);
	hmac_sha256_update(&c, strlen(text), (const uint8_t *)text);
	hmac_sha256_digest(&c, 32, out);
}

static void to_hex(const uint8_t digest[32], char hex[65])
{
	base16_encode_update(hex, 32, digest);
	hex[64] = 0;
}

/* The key depends on the day only, so it is made once. */
static void make_key(const char *day)
{
	char first[256];
	uint8_t key[32];

	if (strcmp(day, bench.day) == 0)
		return;
	strcpy(bench.day, day);
	snprintf(first, sizeof(first), "AWS4%s", bench.secret_key);
	hmac(first, strlen(first), day, key);
	hmac(key, sizeof(key), bench.region, key);
	hmac(key, sizeof(key), "s3", key);
	hmac(key, sizeof(key), "aws4_request", bench.signing_key);
}

static struct curl_slist *sign(struct curl_slist *headers)
{
	static const char names[] = "host;x-amz-content-sha256;x-amz-date";
	char date[17], day[9], text[2048], hex[65], header[512];
	struct sha256_ctx c;
	uint8_t digest[32];
	time_t now = time(NULL);
	struct tm tm;

	strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
	strftime(day, sizeof(day), "%Y%m%d", &tm);
	make_key(day);
	snprintf(text, sizeof(text),
		"GET\n%s\n\nhost:%s\nx-amz-content-sha256:" EMPTY_SHA256
		"\nx-amz-date:%s\n\n%s\n" EMPTY_SHA256,
		bench.path, bench.host, date, names);
	sha256_init(&c);
	sha256_update(&c, strlen(text), (const uint8_t *)text);
	sha256_digest(&c, sizeof(digest), digest);
	to_hex(digest, hex);
	snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n%s", date, day,
		bench.region, hex);
	hmac(bench.signing_key, sizeof(bench.signing_key), text, digest);
	to_hex(digest, hex);
	snprintf(header, sizeof(header), "x-amz-date: %s", date);
	headers = curl_slist_append(headers, header);
	headers = curl_slist_append(headers, "x-amz-content-sha256: " EMPTY_SHA256);
	snprintf(header, sizeof(header),
		"Authorization: AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request, "
		"SignedHeaders=%s, Signature=%s",
		bench.access_key, day, bench.region, names, hex);
	return curl_slist_append(headers, header);
}

/* ---- one GET ---- */

static size_t on_body(char *from, size_t size, size_t n, void *context)
{
	struct get *g = context;

	if (g->n + n > (size_t)bench.bytes)
		return 0; /* fails the GET */
	memcpy(g->body + g->n, from, n);
	g->n += n;
	return size * n;
}

static size_t on_header(char *line, size_t size, size_t n, void *context)
{
	long long begin, end, bytes;

	(void)context;
	if (n < 300 && bench.size == 0) {
		char text[300];

		memcpy(text, line, n);
		text[n] = 0;
		if (strncasecmp(text, "content-range:", 14) == 0 &&
			sscanf(text + 14, " bytes %lld-%lld/%lld", &begin, &end, &bytes) == 3)
			bench.size = bytes;
	}
	return size * n;
}

static void begin(struct get *g)
{
	long long at = bench.size <= bench.bytes
			       ? 0
			       : (long long)(drand48() * (double)(bench.size - bench.bytes));
	char range[64];

	snprintf(range, sizeof(range), "%lld-%lld", at, at + bench.bytes - 1);
	curl_slist_free_all(g->headers);
	g->headers = curl_slist_append(NULL, "Accept-Encoding: identity");
	if (bench.access_key)
		g->headers = sign(g->headers);
	g->n = 0;
	g->from = now_s();
	check(curl_easy_setopt(g->easy, CURLOPT_RANGE, range), "range");
	check(curl_easy_setopt(g->easy, CURLOPT_HTTPHEADER, g->headers), "headers");
	check_multi(curl_multi_add_handle(bench.multi, g->easy), "add");
}

static void end(struct get *g, CURLcode code)
{
	check_multi(curl_multi_remove_handle(bench.multi, g->easy), "remove");
	if (code == CURLE_OK)
		curl_easy_getinfo(g->easy, CURLINFO_RESPONSE_CODE, &bench.last_status);
	if (code != CURLE_OK || bench.last_status != 206 || g->n != (size_t)bench.bytes) {
		if (code != CURLE_OK)
			fprintf(stderr, "bench-get: %s\n", curl_easy_strerror(code));
		bench.failed++;
	}
	bench.took_ms[bench.gets % SAMPLES] = (float)((now_s() - g->from) * 1e3);
	bench.gets++;
	bench.received += g->n;
}

static void make(struct get *g)
{
	g->easy = curl_easy_init();
	g->body = malloc((size_t)bench.bytes);
	if (!g->easy || !g->body)
		stop("GET", "no memory");
	check(curl_easy_setopt(g->easy, CURLOPT_URL, bench.url), "URL");
	curl_easy_setopt(g->easy, CURLOPT_PRIVATE, g);
	curl_easy_setopt(g->easy, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(g->easy, CURLOPT_WRITEDATA, g);
	curl_easy_setopt(g->easy, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(g->easy, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(g->easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(g->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	if (getenv("SSL_CERT_FILE"))
		curl_easy_setopt(g->easy, CURLOPT_CAINFO, getenv("SSL_CERT_FILE"));
}

/* ---- epoll ---- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *context, void *known)
{
	struct epoll_event e = {.data.fd = fd};

	(void)easy;
	(void)context;
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(bench.epoll, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	e.events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
	epoll_ctl(bench.epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e);
	curl_multi_assign(bench.multi, fd, &bench);
	return 0;
}

static int on_timer(CURLM *multi, long ms, void *context)
{
	(void)multi;
	(void)context;
	bench.timer = ms < 0 ? 0 : now_s() + (double)ms * 1e-3;
	return 0;
}

static void act(curl_socket_t fd, int what)
{
	int running;

	check_multi(curl_multi_socket_action(bench.multi, fd, what, &running), "action");
}

static void wait_and_act(void)
{
	struct epoll_event events[EVENTS];
	double left = bench.timer > 0 ? bench.timer - now_s() : 1;
	int n = epoll_wait(bench.epoll, events, EVENTS, left <= 0 ? 0 : (int)(left * 1e3) + 1);

	if (n < 0 && errno != EINTR)
		stop("epoll_wait", strerror(errno));
	for (int i = 0; i < n; i++)
		act(events[i].data.fd,
			(events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
				(events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
				(events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0));
	if (bench.timer > 0 && now_s() >= bench.timer) {
		bench.timer = 0;
		act(CURL_SOCKET_TIMEOUT, 0);
	}
}

/* Runs the GETs of @get, and begins new ones until bench.until. */
static void run(struct get *get, int n)
{
	int left = n, messages;
	struct CURLMsg *m;

	for (int i = 0; i < n; i++)
		begin(&get[i]);
	while (left > 0) {
		wait_and_act();
		while ((m = curl_multi_info_read(bench.multi, &messages))) {
			CURLcode code = m->data.result;
			struct get *g;

			if (m->msg != CURLMSG_DONE)
				continue;
			curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &g);
			end(g, code);
			if (now_s() < bench.until)
				begin(g);
			else
				left--;
		}
	}
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static void read_arguments(char **argv)
{
	const char *host = strstr(argv[1], "://");

	bench.url = argv[1];
	bench.bytes = atoll(argv[2]);
	bench.path = host ? strchr(host + 3, '/') : NULL;
	if (!bench.path || bench.path - host - 3 >= (long)sizeof(bench.host))
		stop(argv[1], "not http[s]://HOST[:PORT]/BUCKET/KEY");
	memcpy(bench.host, host + 3, (size_t)(bench.path - host - 3));
	bench.access_key = getenv("AWS_ACCESS_KEY_ID");
	bench.secret_key = getenv("AWS_SECRET_ACCESS_KEY");
	bench.region = getenv("AWS_REGION") ? getenv("AWS_REGION") : "us-east-1";
	if (bench.bytes < 1 || (bench.access_key && !bench.secret_key))
		stop(argv[2], "bytes must be 1 or more, and a key needs its secret");
}

int main(int argc, char **argv)
{
	static struct get get[MOST_IN_FLIGHT];
	int in_flight = argc == 5 ? atoi(argv[3]) : 0;

	if (in_flight < 1 || in_flight > MOST_IN_FLIGHT) {
		fprintf(stderr, "usage: bench-get URL BYTES IN_FLIGHT SECONDS\n");
		return 2;
	}
	read_arguments(argv);
	curl_global_init(CURL_GLOBAL_DEFAULT);
	bench.multi = curl_multi_init();
	bench.epoll = epoll_create1(EPOLL_CLOEXEC);
	curl_multi_setopt(bench.multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(bench.multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(bench.multi, CURLMOPT_MAXCONNECTS, (long)in_flight);
	for (int i = 0; i < in_flight; i++)
		make(&get[i]);
	run(get, in_flight); /* opens the connections, and learns the object's size */
	if (bench.failed || bench.size == 0) {
		fprintf(stderr, "bench-get: %s: answered with %ld\n", bench.url, bench.last_status);
		return 1;
	}
	bench.gets = bench.received = 0;

	double from = now_s(), cpu = cpu_s(), seconds;

	bench.until = from + atof(argv[4]);
	run(get, in_flight);
	seconds = now_s() - from;
	cpu = cpu_s() - cpu;
	size_t n = bench.gets < SAMPLES ? bench.gets : SAMPLES;

	qsort(bench.took_ms, n, sizeof(bench.took_ms[0]), by_value);
	printf("{\"gets\": %llu, \"failed\": %llu, \"rate\": %.1f, \"cpu_us\": %.2f, "
	       "\"mb_per_s\": %.2f, \"p50_ms\": %.2f, \"p99_ms\": %.2f}\n",
		bench.gets, bench.failed, (double)bench.gets / seconds,
		cpu * 1e6 / (double)bench.gets, (double)bench.received / seconds / 1e6,
		bench.took_ms[n / 2], bench.took_ms[n - 1 - n / 100]);
	return bench.failed != 0;
}
