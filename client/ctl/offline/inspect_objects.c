#include "client/ctl/offline/inspect_objects.h"

#include "client/ctl/offline/inspect_ahead.h"
#include "client/ctl/offline/inspect_from.h"
#include "daemon/config/url_text.h"

#include <stdlib.h>
#include <string.h>

/* Lists the masks of the dataset that the path is in, if the config has one. */
static bool list_masks(
	struct inspect *in, const char *url, struct ctl_listing *masks, struct fault *fault)
{
	const struct listed *l = listed_find(&in->all, url, &(int64_t){0});
	const char *written = l ? l->dataset->label_mask : NULL;
	size_t n = written ? strlen(written) : 0;
	char *whole = NULL;
	bool fine;

	in->masks = NULL;
	if (!written || !url_text_is(written))
		return true;
	if (asprintf(&whole, "%s%s", written, written[n - 1] == '/' ? "" : "/") < 0)
		return fault_memory(fault);
	fine = ctl_listing_open(masks, in->stores, whole, NULL, fault) ||
	       fault_prefix(fault, "%s: ", whole);
	if (fine)
		in->masks = masks;
	free(whole);
	return fine;
}

void inspect_objects(struct inspect *in, const char *url, const char *from)
{
	struct ctl_listing listing = {0}, masks = {0};
	struct fault fault;

	if (!list_masks(in, url, &masks, &fault))
		inspect_unread(in, url, fault.text);
	else if (from)
		inspect_from(in, from, url);
	else if (ctl_listing_open(&listing, in->stores, url, in->masks, &fault))
		inspect_ahead(in, &listing, url);
	else
		inspect_unread(in, url, fault.text);
	ctl_listing_close(&listing);
	ctl_listing_close(&masks);
}
