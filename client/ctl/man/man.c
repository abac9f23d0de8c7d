/* For man pages and shells. Both take commands and options from their `--help`. */
#include "client/ctl/common/ctl.h"
#include "daemon/config/schema.h"

#include <string.h>

/* ---- config keys, for pages.py ---- */

static void put_keys(const char *name, const struct schema_table *table)
{
	char right[SCHEMA_RIGHT_BYTES];

	printf("@keys %s\n\n", name);
	for (size_t i = 0; i < table->n; i++) {
		const struct schema_key *key = &table->keys[i];
		const char *preset = key->preset ? key->preset : key->otherwise;

		printf("= %s:\n%s\nValue: %s.%s", key->name, key->help, schema_right(key, right),
			key->required ? " Required." : "");
		printf("%s%s%s\n\n", preset ? " Default: " : "", preset ? preset : "",
			preset ? "." : "");
	}
}

int ctl_keys(void)
{
	put_keys("config", &config_table);
	put_keys("stream", &stream_table);
	put_keys("dataset", &dataset_table);
	put_keys("step", &step_table);
	put_keys("store", &store_table);
	put_keys("cache", &cache_table);
	return CTL_OK;
}

/* ---- completion: of commands and options, otherwise of files ---- */

static const char function[] =
	"_tokctl_words() {\n"
	"	local word words said=()\n"
	"	for word in \"${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}\"; do\n"
	"		case $word in -*) break ;; help) ;; *) said+=(\"$word\") ;; esac\n"
	"	done\n"
	"	words=$(\"${1##*/}\" \"${said[@]}\" --help 2>/dev/null |\n"
	"		sed -nE 's/^ +(-., )?(--[a-z-]+).*/\\2/p; s/^  ([a-z]+)  .*/\\1/p')\n"
	"	COMPREPLY=($(compgen -W \"$words\" -- \"$2\"))\n"
	"}\n";

static int completion(const struct ctl_arguments *a)
{
	if (strcmp(a->argument[0], "bash") == 0)
		printf("%scomplete -o default -F _tokctl_words tokctl tokend\n", function);
	else if (strcmp(a->argument[0], "zsh") == 0)
		printf("#compdef tokctl tokend\nautoload -Uz bashcompinit && bashcompinit\n%s"
		       "if [ \"$funcstack[1]\" = _tokctl ]; then\n"
		       "\t_bash_complete -o default -F _tokctl_words\n"
		       "else\n"
		       "\tcomplete -o default -F _tokctl_words tokctl tokend\n"
		       "fi\n",
			function);
	else
		return ctl_usage(a->command, "'%s': must be bash or zsh", a->argument[0]);
	return CTL_OK;
}

const struct ctl_command ctl_completion = {
	.name = "completion",
	.head = "Of tokctl:",
	.arguments = "bash|zsh",
	.help = "print a completion of tokctl and tokend for a shell",
	.run = completion,
};
