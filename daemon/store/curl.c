#include "daemon/store/curl.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

/* clang-format off */
#define FUNCTION(name) {"curl_" #name, offsetof(struct curl, name)}
/* clang-format on */

static const struct {
	const char *name;
	size_t at; /* in struct curl */
} functions[] = {
	FUNCTION(global_init),
	FUNCTION(easy_init),
	FUNCTION(easy_cleanup),
	FUNCTION(easy_perform),
	FUNCTION(easy_setopt),
	FUNCTION(easy_getinfo),
	FUNCTION(easy_strerror),
	FUNCTION(slist_append),
	FUNCTION(slist_free_all),
	FUNCTION(multi_init),
	FUNCTION(multi_cleanup),
	FUNCTION(multi_add_handle),
	FUNCTION(multi_remove_handle),
	FUNCTION(multi_perform),
	FUNCTION(multi_poll),
	FUNCTION(multi_wakeup),
	FUNCTION(multi_info_read),
};

/* Debian's libcurl4 first, then what RHEL, SUSE and Alpine have, which has the same name. */
static const char *const libraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

static bool load(struct curl *curl, struct fault *fault)
{
	void *library = NULL;

	for (unsigned i = 0; !library && i < sizeof(libraries) / sizeof(libraries[0]); i++)
		library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fault_errno(fault, ELIBACC, "stores",
			"objects in stores need libcurl.so.4, which was not found; install "
			"libcurl4 (Debian), libcurl (RHEL, Alpine) or libcurl4 (SUSE)");
	for (unsigned i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *function = dlsym(library, functions[i].name);

		if (!function)
			return fault_errno(fault, ELIBACC, "stores",
				"libcurl has no function %s; install libcurl 7.68 or later",
				functions[i].name);
		memcpy((char *)curl + functions[i].at, &function, sizeof(function));
	}
	if (curl->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return fault_errno(fault, ELIBACC, "stores",
			"libcurl cannot be initialised; install it again");
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
