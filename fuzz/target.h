/* target.h: what every fuzz target gives: libFuzzer calls it, and replay.c, which runs a corpus without libFuzzer.
 * A target ends by abort() when the code under it does what it never should; sanitizers find the rest. */
#ifndef ASSAY_FUZZ_TARGET_H
#define ASSAY_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* Says what should not be, and aborts. */
_Noreturn void fuzz_found(const char *what, const char *detail);

/* Writes the bytes to a file NAME in a folder of this process; returns its path. The folder is removed at exit. */
const char *fuzz_file(const char *name, const uint8_t *bytes, size_t count);
/* Writes a further file in that folder, once. With bytes NULL it returns the path alone, and the caller writes it. */
const char *fuzz_beside(const char *name, const uint8_t *bytes, size_t count);

#endif
