/* start.h: what happens before main(). */
#ifndef ASSAY_CONFORMANCE_START_H
#define ASSAY_CONFORMANCE_START_H

/* Puts the environment back as it was given. The first statement of main(). */
void start_restore(void);

#endif
