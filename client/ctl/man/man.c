#include "client/ctl/man/man.h"

#include "client/ctl/common/error.h"
#include "client/ctl/man/page.h"

#include <stdio.h>
#include <string.h>

int ctl_man(const struct ctl_command *const *commands, const char *page)
{
	if (strcmp(page, "tokctl.1") == 0)
		page_tokctl(stdout, commands);
	else if (strcmp(page, "tokend.8") == 0)
		page_tokend(stdout);
	else if (strcmp(page, "tokend.yaml.5") == 0)
		page_config(stdout);
	else {
		ctl_fail("no man page '%s'; must be tokctl.1, tokend.8 or tokend.yaml.5", page);
		return CTL_USAGE;
	}
	return CTL_OK;
}
