/*
 * libcurl, loaded when a process reads the first object. It is not linked, so a process without
 * objects does not load its 28 libraries, and a wheel runs where there is none.
 */
#ifndef TOKEND_STORE_CURL_H
#define TOKEND_STORE_CURL_H

#include "proto/fault.h"

#include <curl/curl.h>

/* The macros of curl.h that check the types of arguments cannot be members' names. */
#undef curl_easy_setopt
#undef curl_easy_getinfo

/* The functions that are used, without "curl_". */
struct curl {
	typeof(curl_global_init) *global_init;
	typeof(curl_easy_init) *easy_init;
	typeof(curl_easy_cleanup) *easy_cleanup;
	typeof(curl_easy_perform) *easy_perform; /* only for threads that may block */
	typeof(curl_easy_setopt) *easy_setopt;
	typeof(curl_easy_getinfo) *easy_getinfo;
	typeof(curl_easy_strerror) *easy_strerror;
	typeof(curl_slist_append) *slist_append;
	typeof(curl_slist_free_all) *slist_free_all;
	typeof(curl_multi_init) *multi_init;
	typeof(curl_multi_cleanup) *multi_cleanup;
	typeof(curl_multi_add_handle) *multi_add_handle;
	typeof(curl_multi_remove_handle) *multi_remove_handle;
	typeof(curl_multi_perform) *multi_perform;
	typeof(curl_multi_poll) *multi_poll;
	typeof(curl_multi_wakeup) *multi_wakeup;
	typeof(curl_multi_info_read) *multi_info_read;
};

/* Loads libcurl once per process; it stays. NULL: @fault. Any thread. */
const struct curl *curl_load(struct fault *fault);

#endif
