/* A run by its name, or by the beginning of it. */
#ifndef TOKEND_CTL_RUN_NAME_H
#define TOKEND_CTL_RUN_NAME_H

enum { RUN_UNKNOWN = -1, RUN_AMBIGUOUS = -2 };

/*
 * The index of the run that @typed means: the one of this name, otherwise the only one whose name
 * begins with it. RUN_AMBIGUOUS, after an error was printed that lists them. RUN_UNKNOWN: none.
 */
int ctl_run_match(const char *const *names, unsigned n, const char *typed);

#endif
