/* Skips a C test. tests/run counts it, and fails one that does not say why. */
#ifndef TOKEND_SKIP_H
#define TOKEND_SKIP_H

#define skip_because(why)                                                                          \
	do {                                                                                       \
		print_message("skipped: " why "\n");                                               \
		skip();                                                                            \
	} while (0)

#endif
