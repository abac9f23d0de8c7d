/* The sections that all pages have, and the pages. */
#ifndef TOKEND_CTL_PAGE_H
#define TOKEND_CTL_PAGE_H

#include "client/ctl/common/arguments.h"

#include <stdio.h>

struct page_item {
	const char *name; /* of a variable, a file or a number; NULL ends the list */
	const char *text;
};

void page_items(FILE *to, const char *section, const struct page_item *items);
struct page_option {
	char letter; /* or 0 */
	bool required;
	const char *name, *value; /* @value may be NULL */
	const char *help, *range; /* @range may be "" */
};

void page_option(FILE *to, const struct page_option *option);
/* @examples ends with NULL. */
void page_examples(FILE *to, const struct ctl_example *examples);

void page_tokctl(FILE *to, const struct ctl_command *const *commands);
void page_tokend(FILE *to);
void page_config(FILE *to);

#endif
