/* One page of ListObjectsV2: XML to objects. For list.c and the fuzzer. */
#ifndef TOKEND_STORE_LIST_H
#define TOKEND_STORE_LIST_H

#include "daemon/store/store.h"

enum {
	LIST_PAGE_BYTES = 16 << 20, /* a page that is larger is refused: 1,000 keys take 4 MiB */
	LIST_KEY_BYTES = 1024,
	LIST_TOKEN_BYTES = 2048,
};

struct list_page {
	bool truncated;
	char next[LIST_TOKEN_BYTES]; /* the continuation token; "": none */
	bool ended;		     /* @each returned false */
};

/*
 * Calls @each for the objects of a page, which is @n bytes of XML, in their order there. A key is
 * decoded, but otherwise as the store gives it: perhaps twice, out of order, "" or with "..". One
 * that does not begin with @prefix is refused. False: @fault, FAULT_DATA; some objects may have
 * been passed to @each.
 */
bool list_page(const char *xml, size_t n, const struct store_bucket *bucket, const char *prefix,
	bool (*each)(void *context, const struct object *object), void *context,
	struct list_page *page, struct fault *fault);

#endif
