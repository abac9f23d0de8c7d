/* Words in names of files and columns that say what they are: for the daemon and for Python. */
#ifndef TOKEND_WORDS_H
#define TOKEND_WORDS_H

/* Each between blanks. */
#define WORDS_VALIDATION                                                                           \
	" val valid validation test testing eval evaluation dev held heldout holdout "
#define WORDS_SIDE " idx index indexes indices mask masks offset offsets lengths labels bounds "

/* Columns that exclude tokens. */
#define COLUMNS_MASK "attention_mask", "labels", "loss_mask", "completion_mask", "assistant_masks"

#endif
