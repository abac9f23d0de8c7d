#include "daemon/store/get.h"

#include "proto/version.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- libcurl's callbacks ---- */

static size_t on_header(char *line, size_t size, size_t n, void *context)
{
	struct get *get = context;

	(void)size;
	if (get->answered_ms == 0) {
		get->answered_ms = stores_now_ms();
		get->deadline_ms =
			get->answered_ms +
			(get->range->n > GET_LARGE_BYTES ? GET_STALL_MS
							 : retry_first_byte_ms(&get->range->tries));
	}
	return answer_header(&get->answer, line, n) ? n : 0;
}

/* The body of an error, of which the first bytes say which one. */
static size_t on_error_body(struct get *get, const char *from, size_t n)
{
	size_t room = sizeof(get->error_body) - get->n, fits = n < room ? n : room;

	memcpy(get->error_body + get->n, from, fits);
	get->n += fits;
	return fits; /* fewer than @n ends the GET */
}

static size_t on_body(char *from, size_t size, size_t n, void *context)
{
	struct get *get = context;

	(void)size;
	if (!get->judged) {
		verdict_headers(&get->asked, &get->answer, &get->verdict);
		get->judged = true;
	}
	if (get->verdict.kind != VERDICT_GOOD || get->answer.status == 416)
		return on_error_body(get, from, n);
	if (n > get->range->n - get->n) {
		get->n = get->range->n + 1; /* too long */
		return 0;
	}
	memcpy(get->range->body + get->n, from, n);
	get->n += n;
	return n;
}

/* ---- handles ---- */

static void set_certificates(const struct store_bucket *bucket, CURL *easy)
{
	const struct curl *curl = bucket->stores->curl;
	struct curl_blob blob = {.data = bucket->certificates.text,
		.len = bucket->certificates.n,
		.flags = CURL_BLOB_NOCOPY};
	const char *file = certificates_system();

	/* Without a directory, libcurl parses the file once for all connections. */
	curl->easy_setopt(easy, CURLOPT_CAPATH, bucket->ca_directory);
	curl->easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, -1L);
	if (blob.data)
		curl->easy_setopt(easy, CURLOPT_CAINFO_BLOB, &blob);
	else if (file)
		curl->easy_setopt(easy, CURLOPT_CAINFO, file);
}

static void set_options(const struct store_bucket *bucket, struct get *get)
{
	const struct curl *curl = bucket->stores->curl;
	CURL *easy = get->easy;

	curl->easy_setopt(easy, CURLOPT_PRIVATE, get);
	curl->easy_setopt(easy, CURLOPT_ERRORBUFFER, get->error);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
	curl->easy_setopt(easy, CURLOPT_WRITEDATA, get);
	curl->easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
	curl->easy_setopt(easy, CURLOPT_HEADERDATA, get);
	curl->easy_setopt(easy, CURLOPT_HTTPHEADER, get->headers);
	curl->easy_setopt(easy, CURLOPT_USERAGENT, "tokend/" TOKEND_VERSION);
	curl->easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl->easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L); /* a proxy's */
	curl->easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl->easy_setopt(
		easy, CURLOPT_REDIR_PROTOCOLS_STR, bucket->place.tls ? "https" : "http,https");
	/* libcurl sends Authorization to the first host only. */
	curl->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, bucket->place.kind == URL_HTTPS ? 1L : 0L);
	curl->easy_setopt(easy, CURLOPT_MAXREDIRS, 5L);
	set_certificates(bucket, easy);
}

static struct get *get_new(struct store_bucket *bucket)
{
	struct get *get = bucket->spare;

	if (get) {
		bucket->spare = get->next;
		return get;
	}
	get = calloc(1, sizeof(*get));
	if (!get)
		return NULL;
	get->easy = bucket->stores->curl->easy_init();
	if (!get->easy) {
		free(get);
		return NULL;
	}
	set_options(bucket, get);
	return get;
}

void get_release(struct get *get)
{
	struct store_bucket *bucket = get->range->bucket;

	get->range = NULL;
	get->next = bucket->spare;
	bucket->spare = get;
}

void get_free_spares(struct store_bucket *bucket)
{
	while (bucket->spare) {
		struct get *get = bucket->spare;

		bucket->spare = get->next;
		bucket->stores->curl->easy_cleanup(get->easy);
		free(get);
	}
}

/* ---- the beginning ---- */

static void set_request(struct get *get)
{
	const struct range *range = get->range;
	const struct curl *curl = range->bucket->stores->curl;
	char url[GET_URL_BYTES];

	get_request(get, url);
	curl->easy_setopt(get->easy, CURLOPT_URL, url);
	explicit_bzero(url, strlen(url));
	if (range->kind == VERDICT_HEAD)
		curl->easy_setopt(get->easy, CURLOPT_NOBODY, 1L);
	else
		curl->easy_setopt(get->easy, CURLOPT_HTTPGET, 1L);
	/* After some faults: another connection, perhaps to another address. */
	curl->easy_setopt(get->easy, CURLOPT_FRESH_CONNECT, range->fresh ? 1L : 0L);
	curl->easy_setopt(get->easy, CURLOPT_DNS_CACHE_TIMEOUT, range->fresh ? 0L : 60L);
	curl->easy_setopt(get->easy, CURLOPT_BUFFERSIZE,
		range->n > 64 * 1024 ? 256L * 1024 : (long)CURL_MAX_WRITE_SIZE);
}

bool get_begin(struct range *range, struct fault *fault)
{
	struct stores *stores = range->bucket->stores;
	struct get *get = get_new(range->bucket);

	if (!get)
		return fault_memory(fault);
	get->range = range;
	get->asked = (struct verdict_asked){.want = range->kind,
		.etag = range->etag,
		.size = range->size,
		.at = range->at,
		.n = range->n};
	get->answer = (struct answer){.size = STORE_SIZE_UNKNOWN};
	get->judged = get->timed_out = false;
	get->n = get->stall_n = 0;
	get->serial = range->bucket->credentials->serial;
	get->begun_ms = stores_now_ms();
	get->answered_ms = 0;
	get->deadline_ms = get->begun_ms + retry_first_byte_ms(&range->tries);
	get->error[0] = 0;
	set_request(get);
	if (stores->curl->multi_add_handle(stores->multi, get->easy) != CURLM_OK) {
		get_release(get);
		return fault_memory(fault);
	}
	TAILQ_INSERT_TAIL(&stores->gets, get, link);
	return true;
}

/* ---- the end ---- */

/* Words for a GET that libcurl ended without an answer. */
static void judge_network(const struct get *get, CURLcode code, struct verdict *v)
{
	const struct curl *curl = get->range->bucket->stores->curl;

	*v = (struct verdict){.kind = VERDICT_HEALS, .code = FAULT_IO, .remedy = ""};
	if (get->timed_out) {
		v->overload = true;
		snprintf(v->reason, sizeof(v->reason), "no %s within %.0f s",
			get->answered_ms ? "end of the answer" : "answer",
			(double)(get->deadline_ms -
				 (get->answered_ms ? get->answered_ms : get->begun_ms)) /
				1000);
		return;
	}
	if (code == CURLE_PEER_FAILED_VERIFICATION) {
		v->kind = VERDICT_UNTRUSTED;
		v->remedy = "set `ca:` of the store to the certificate of its authority";
	} else if (code == CURLE_SSL_CACERT_BADFILE) {
		v->kind = VERDICT_FINAL;
		v->remedy = "correct `ca:` of the store, or SSL_CERT_FILE";
	} else if (code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_UNSUPPORTED_PROTOCOL) {
		v->kind = VERDICT_FINAL;
		v->remedy = "give the URL to which it redirects";
	} else if (code == CURLE_PARTIAL_FILE || code == CURLE_GOT_NOTHING ||
		   code == CURLE_RECV_ERROR) {
		v->kind = get->answered_ms ? VERDICT_TORN : VERDICT_HEALS;
	}
	snprintf(v->reason, sizeof(v->reason), "%.200s",
		get->error[0] ? get->error : curl->easy_strerror(code));
	fault_line(v->reason);
}

static void judge(struct get *get, CURLcode code, struct verdict *v)
{
	bool answered = get->answer.status >= 200 && !get->timed_out;
	bool cut_by_us = get->judged && get->verdict.kind != VERDICT_GOOD;

	if (get->answer.too_long ||
		(answered && (code == CURLE_OK || cut_by_us || get->n > get->range->n))) {
		if (get->judged && get->verdict.kind != VERDICT_GOOD)
			answer_error(&get->answer, get->error_body, get->n);
		verdict_answer(&get->asked, &get->answer, get->n, v);
	} else {
		judge_network(get, code, v);
	}
}

enum { CLOCK_NEWS_S = 60 };

/* The server's clock minus ours. */
static void read_clock(const struct get *get, struct outcome *outcome)
{
	struct store_bucket *bucket = get->range->bucket;

	if (outcome->verdict.kind != VERDICT_CLOCK || !get->answer.date)
		return;
	int64_t offset = get->answer.date - (int64_t)time(NULL);

	/* Other GETs, signed before, bring the same news: one log line. */
	outcome->fresh_clock = llabs(offset - bucket->clock_offset_s) > CLOCK_NEWS_S;
	bucket->clock_offset_s = offset;
	wallet_clock(bucket->wallet, offset);
	outcome->clock_offset_s = offset;
}

void get_end(struct get *get, CURLcode code)
{
	struct range *range = get->range;
	struct stores *stores = range->bucket->stores;
	struct outcome *outcome = &get->outcome;

	*outcome = (struct outcome){
		.retry_after_s = get->answer.retry_after_s,
		.status = get->answer.status,
		.bytes = get->n,
		.begun_ms = get->begun_ms,
		.serial = get->serial,
		.timeout = get->timed_out,
	};

	stores->curl->multi_remove_handle(stores->multi, get->easy);
	TAILQ_REMOVE(&stores->gets, get, link);
	judge(get, code, &outcome->verdict);
	if (get->answered_ms)
		outcome->first_byte_ms = (unsigned)(get->answered_ms - get->begun_ms);
	read_clock(get, outcome);
	if (get->serial && (outcome->verdict.kind == VERDICT_EXPIRED ||
				   outcome->verdict.kind == VERDICT_DENIED))
		wallet_refused(range->bucket->wallet, get->serial);
	if (outcome->verdict.kind == VERDICT_GOOD) {
		range->body_n = get->answer.status == 416 ? 0 : get->n;
		range->answer_size = get->answer.status == 206	 ? get->answer.size
				     : get->answer.status == 416 ? 0
				     : get->answer.has_length	 ? get->answer.length
								 : STORE_SIZE_UNKNOWN;
		snprintf(range->answer_etag, sizeof(range->answer_etag), "%s", get->answer.etag);
	}
	TAILQ_INSERT_TAIL(&stores->ended, get, link);
}

/* ---- time ---- */

/* While a name is being looked up, libcurl would wait for the end of that. */
static bool may_end(const struct get *get)
{
	curl_off_t lookup = 0;

	get->range->bucket->stores->curl->easy_getinfo(
		get->easy, CURLINFO_NAMELOOKUP_TIME_T, &lookup);
	return lookup > 0 || get->answered_ms;
}

static bool too_slow(struct get *get, int64_t now_ms)
{
	if (now_ms < get->deadline_ms)
		return false;
	if (get->answered_ms && get->range->n > GET_LARGE_BYTES &&
		get->n - get->stall_n >= GET_STALL_BYTES) {
		get->stall_n = get->n;
		get->deadline_ms = now_ms + GET_STALL_MS;
		return false;
	}
	return may_end(get);
}

unsigned gets_check(struct stores *stores, int64_t now_ms)
{
	struct get *get, *next;

	for (get = TAILQ_FIRST(&stores->gets); get; get = next) {
		next = TAILQ_NEXT(get, link);
		if (!too_slow(get, now_ms))
			continue;
		get->timed_out = true;
		get_end(get, CURLE_OPERATION_TIMEDOUT);
	}
	return GET_CHECK_MS;
}

void gets_close(struct stores *stores)
{
	struct get *get;

	TAILQ_CONCAT(&stores->gets, &stores->ended, link);
	while ((get = TAILQ_FIRST(&stores->gets))) {
		struct range *range = get->range;

		TAILQ_REMOVE(&stores->gets, get, link);
		if (may_end(get)) {
			stores->curl->multi_remove_handle(stores->multi, get->easy);
			get_release(get);
		} else {
			stores->leaks = true;
		}
		range_end(range); /* all wants were cancelled */
	}
}
