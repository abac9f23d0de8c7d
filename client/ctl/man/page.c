#include "client/ctl/man/page.h"

#include "client/ctl/man/roff.h"

void page_items(FILE *to, const char *section, const struct page_item *items)
{
	roff_section(to, section);
	for (; items->name; items++) {
		roff_term(to, items->name, NULL);
		roff_sentences(to, items->text);
	}
}

void page_option(FILE *to, const struct page_option *o)
{
	char term[64];

	snprintf(term, sizeof(term), "%s%.1s%s--%s", o->letter ? "-" : "", &o->letter,
		o->letter ? ", " : "", o->name);
	roff_term(to, term, o->value);
	roff_phrase(to, o->help, o->range, ".");
	if (o->required)
		fputs("Required.\n", to);
}

void page_examples(FILE *to, const struct ctl_example *examples)
{
	for (; examples->command; examples++) {
		fputs(".PP\n", to);
		roff_phrase(to, examples->shows, "", ":");
		roff_example(to, examples->command);
	}
}
