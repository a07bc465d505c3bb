/* modes.h: the numeric modes and the locale of a thread, which code from outside may change. Before each call of a
 * launcher they are set to those that every process begins with; after it they are looked at and set again. */
#ifndef ASSAY_CORE_MODES_H
#define ASSAY_CORE_MODES_H

#include <stdbool.h>
#include <stddef.h>

/* Sets rounding to nearest, subnormal numbers, no traps, and the C locale, for this thread. */
void modes_set(void);
/* Tells whether the modes are not those of modes_set. Writes what differs to `text`, then sets them again. */
bool modes_changed(char *text, size_t size);

/* Returns what calls have changed in this thread since modes_forget, as "after launch(): ..."; NULL: nothing. */
const char *modes_noted(void);
void modes_forget(void);
/* Notes a change that is known from elsewhere: of the loader, or a thread that is left. The first one stays. */
void modes_note(const char *what, const char *text);

#endif
