#include "daemon/store/internal.h"

#include "proto/version.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* Debian's libcurl4 first, then what RHEL, SUSE and Alpine have, which has the same name. */
static const char *const libraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

static bool load(struct curl *curl, struct fault *fault)
{
	void *library = NULL;
	glob_t hashes = {0};

	for (unsigned i = 0; !library && i < sizeof(libraries) / sizeof(libraries[0]); i++)
		library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fault_errno(fault, ELIBACC, "stores",
			"objects in stores need libcurl.so.4, which was not found; install "
			"libcurl4 (Debian), libcurl (RHEL, Alpine) or libcurl4 (SUSE)");
#define FIND(name) &&(curl->name = (typeof(curl->name))dlsym(library, "curl_" #name))
	if (!(true CURL_FUNCTIONS(FIND)))
#undef FIND
		return fault_errno(fault, ELIBACC, "stores",
			"libcurl is too old; install libcurl 7.68 or later");
	signal(SIGPIPE, SIG_IGN); /* TLS writes to sockets that the server has closed */
	if (curl->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return fault_errno(fault, ELIBACC, "stores",
			"libcurl cannot be initialised; install it again");
	curl->hashed = glob("/etc/ssl/certs/????????.0", 0, NULL, &hashes) == 0;
	globfree(&hashes);
	return true;
}

const struct curl *curl_load(struct fault *fault)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static struct curl curl; /* one per process, as libcurl's own global state */
	static bool loaded;

	pthread_mutex_lock(&mutex);
	if (!loaded)
		loaded = load(&curl, fault);
	bool ready = loaded;

	pthread_mutex_unlock(&mutex);
	return ready ? &curl : NULL;
}

/* ---- certificates ---- */

/* Which certificates are trusted: those of @ca, of $SSL_CERT_FILE, otherwise libcurl's own. It
 * parses a file anew for each handle, and a system's file costs 15 ms and a megabyte. So a
 * directory of certificates with hashes as their names, "ab12cd34.0", is preferred. */
static void trust(const struct curl *curl, CURL *easy, const char *ca)
{
	const char *file = ca ? ca : variable("SSL_CERT_FILE");

	if (file || curl->hashed) {
		curl->easy_setopt(easy, CURLOPT_CAINFO, file);
		curl->easy_setopt(easy, CURLOPT_CAPATH, file ? NULL : "/etc/ssl/certs");
	}
	curl->easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, -1L);
}

CURL *curl_handle(const struct curl *curl, const char *ca)
{
	CURL *easy = curl->easy_init();

	if (!easy)
		return NULL;
	trust(curl, easy, ca);
	curl->easy_setopt(easy, CURLOPT_USERAGENT, "tokend/" TOKEND_VERSION);
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl->easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* does not wait for a name server */
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
	return easy;
}
