/* words.h: words in texts, and the word of a list that a mistyped word most likely meant. */
#ifndef ASSAY_CONFORMANCE_TEXT_WORDS_H
#define ASSAY_CONFORMANCE_TEXT_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the word of `list` ("a, b, c") closest to `word`, copied into the caller's buffer. Returns NULL where no
 * word is close enough to be a typing error. */
const char *word_nearest(const char *word, const char *list, char *buffer, size_t size);

/* Tells whether `word` is a whole word of the text's first `length` characters. Letters, digits and "_" make words. */
bool word_is_in(const char *text, size_t length, const char *word);

#endif
