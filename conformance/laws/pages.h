/* pages.h: the memory that the law `pages` keeps between cases. */
#ifndef ASSAY_CONFORMANCE_LAWS_PAGES_H
#define ASSAY_CONFORMANCE_LAWS_PAGES_H

/* Gives back the memory that the law keeps for this thread. */
void pages_release(void);

#endif
