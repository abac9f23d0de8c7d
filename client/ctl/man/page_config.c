/* tokend.yaml(5). */
#include "client/ctl/man/page.h"
#include "client/ctl/man/roff.h"
#include "daemon/config/keys.h"

static const char ABOUT[] =
	"The config of `tokend`(8) is one YAML document, at most 16 MiB. Unknown and repeated keys "
	"are errors. A message has the form FILE:LINE: KEY: fault; remedy. "
	"`tokend -c FILE --check` checks a config and its shards.\n\n"
	"The type of a value follows from its key, and a default is read like a written value. "
	"Numbers are decimal digits without a sign, a leading zero or quotes. Relative paths start "
	"at the directory of the config.";

static const char STREAM[] =
	"A stream is one order. Only its weights may change during a run: a cursor with another "
	"seed, seq_len, extra, stride or list of shards is refused.";

static const char STEP[] =
	"An entry is either a jump, with `at`, or a ramp, with `from`, `to` and `steps`. Positions "
	"count samples and are multiples of 1024.";

static const char STORE[] = "A store is an S3-compatible service, or HTTPS servers. A key that is "
			    "not given has the value "
			    "that the environment gives it.";

static const struct ctl_example *const examples =
	CTL_EXAMPLES({"a stream of one directory of shards", "streams:\n"
							     "  train:\n"
							     "    seed: 42\n"
							     "    seq_len: 32\n"
							     "    datasets:\n"
							     "      - {name: web, path: data/web}"},
		{"a mix of two datasets that changes at position 8192, and a finite stream",
			"memory: 64MiB\n"
			"streams:\n"
			"  train:\n"
			"    seed: 42\n"
			"    seq_len: 32\n"
			"    datasets:\n"
			"      - {name: web, path: data/web, weight: 0.7}\n"
			"      - {name: code, path: data/code, weight: 0.3, max_epochs: 4}\n"
			"    schedule:\n"
			"      - {at: 8192, weights: {web: 0.5, code: 0.5}}\n"
			"  valid:\n"
			"    seed: 42\n"
			"    seq_len: 32\n"
			"    epochs: 1\n"
			"    datasets:\n"
			"      - {name: held-out, path: data/valid.bin}"});

static const struct page_item files[] = {
	{"/etc/tokend/tokend.yaml", "The config of the systemd unit."},
	{"/usr/local/share/doc/tokend/tokend.yaml", "An example with every key, as `make install` "
						    "puts it below its PREFIX."},
	{NULL, NULL},
};

static void put_keys(
	FILE *to, const char *section, const char *about, const struct schema_table *table)
{
	char name[64], right[SCHEMA_RIGHT_BYTES], value[2 * SCHEMA_RIGHT_BYTES];

	roff_section(to, section);
	if (about)
		roff_text(to, about);
	for (size_t i = 0; i < table->n; i++) {
		const struct schema_key *key = &table->keys[i];
		const char *preset = key->preset ? key->preset : key->otherwise;

		snprintf(name, sizeof(name), "%s:", key->name);
		roff_term(to, name, NULL);
		roff_sentences(to, key->help);
		snprintf(value, sizeof(value), "Value: %s.%s%s%s%s", schema_right(key, right),
			key->required ? " Required." : "", preset ? " Default: " : "",
			preset ? preset : "", preset ? "." : "");
		roff_sentences(to, value);
	}
}

void page_config(FILE *to)
{
	roff_begin(to, "tokend.yaml", 5, "the config of tokend");
	roff_section(to, "SYNOPSIS");
	fputs(".I /etc/tokend/tokend.yaml\n", to);
	roff_section(to, "DESCRIPTION");
	roff_text(to, ABOUT);
	put_keys(to, "KEYS", NULL, &config_table);
	put_keys(to, "KEYS OF A STREAM", STREAM, &stream_table);
	put_keys(to, "KEYS OF A DATASET", NULL, &dataset_table);
	put_keys(to, "KEYS OF A SCHEDULE ENTRY", STEP, &step_table);
	put_keys(to, "KEYS OF A STORE", STORE, &store_table);
	put_keys(to, "KEYS OF THE CACHE", NULL, &cache_table);
	roff_section(to, "EXAMPLES");
	page_examples(to, examples);
	page_items(to, "FILES", files);
	roff_section(to, "SEE ALSO");
	fputs(".BR tokend (8),\n.BR tokctl (1)\n", to);
}
