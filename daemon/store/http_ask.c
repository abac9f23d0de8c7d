#include "daemon/store/http_ask.h"

#include "daemon/store/certificates.h"
#include "daemon/store/curl.h"
#include "proto/version.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

struct receiving {
	char *body;
	size_t n;
	int stop;
};

/* Refuses what does not fit, with the zero after it. */
static size_t on_body(char *from, size_t size, size_t n, void *context)
{
	struct receiving *r = context;

	(void)size;
	if (n >= HTTP_BODY_BYTES - r->n)
		return 0;
	memcpy(r->body + r->n, from, n);
	r->n += n;
	r->body[r->n] = 0;
	return n;
}

static int on_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	struct pollfd stop = {.fd = ((struct receiving *)context)->stop, .events = POLLIN};

	(void)a, (void)b, (void)c, (void)d;
	return poll(&stop, 1, 0) == 1;
}

static void set_options(const struct curl *curl, CURL *easy, const struct http_ask *ask,
	struct receiving *receiving)
{
	const char *certificates = certificates_system();

	curl->easy_setopt(easy, CURLOPT_URL, ask->url);
	if (ask->form)
		curl->easy_setopt(easy, CURLOPT_POSTFIELDS, ask->form);
	if (ask->method)
		curl->easy_setopt(easy, CURLOPT_CUSTOMREQUEST, ask->method);
	if (ask->direct)
		curl->easy_setopt(easy, CURLOPT_PROXY, "");
	if (certificates)
		curl->easy_setopt(easy, CURLOPT_CAINFO, certificates);
	curl->easy_setopt(easy, CURLOPT_USERAGENT, "tokend/" TOKEND_VERSION);
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl->easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* does not wait for a name server */
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl->easy_setopt(easy, CURLOPT_TIMEOUT_MS, ask->patience_ms);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
	curl->easy_setopt(easy, CURLOPT_WRITEDATA, receiving);
	curl->easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
	curl->easy_setopt(easy, CURLOPT_XFERINFODATA, receiving);
	curl->easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
}

int http_ask(const struct http_ask *ask, char body[HTTP_BODY_BYTES], struct fault *fault)
{
	const struct curl *curl = curl_load(fault);
	CURL *easy = curl ? curl->easy_init() : NULL;
	struct curl_slist *headers = NULL;
	struct receiving receiving = {.body = body, .stop = ask->stop};
	long status = 0;

	body[0] = 0;
	if (!curl)
		return 0;
	for (int i = 0; i < 3 && ask->headers[i]; i++)
		headers = curl->slist_append(headers, ask->headers[i]);
	if (!easy || (ask->headers[0] && !headers)) {
		fault_memory(fault);
	} else {
		set_options(curl, easy, ask, &receiving);
		curl->easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
		CURLcode code = curl->easy_perform(easy);

		if (code == CURLE_OK)
			curl->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
		else
			fault_errno(fault, EREMOTEIO, "", "%s", curl->easy_strerror(code));
	}
	for (struct curl_slist *h = headers; h; h = h->next)
		explicit_bzero(h->data, strlen(h->data)); /* tokens */
	curl->slist_free_all(headers);
	if (easy)
		curl->easy_cleanup(easy);
	return (int)status;
}
