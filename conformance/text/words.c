/* words.c: words in texts, and the word of a list that a mistyped word most likely meant. */
#include "words.h"

#include <ctype.h>
#include <string.h>

/* Returns the Levenshtein distance of two short words; letters are compared without case. */
static size_t distance(const char *a, size_t n, const char *b, size_t m) {
  enum { LONGEST = 64 };
  size_t row[LONGEST + 1];
  if (n > LONGEST || m > LONGEST) return LONGEST;
  for (size_t j = 0; j <= m; ++j)
    row[j] = j;
  for (size_t i = 1; i <= n; ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= m; ++j) {
      const size_t change = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
      diagonal = row[j];
      const size_t drop = diagonal + 1, add = row[j - 1] + 1;
      row[j] = change < drop ? change : drop;
      if (add < row[j]) row[j] = add;
    }
  }
  return row[m];
}

const char *word_nearest(const char *word, const char *list, char *buffer, size_t size) {
  const size_t n = strlen(word);
  size_t best = n / 3 + 2; /* a more distant word is no typing error */
  buffer[0] = '\0';
  for (const char *at = list; *at != '\0';) {
    at += strspn(at, ", ");
    const size_t m = strcspn(at, ", ");
    const size_t d = distance(word, n, at, m);
    if (d < best && m > d && m < size) {
      best = d;
      memcpy(buffer, at, m);
      buffer[m] = '\0';
    }
    at += m;
  }
  return buffer[0] != '\0' ? buffer : NULL;
}

bool word_is_in(const char *text, size_t length, const char *word) {
  static const char *const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  const char *const end = text + length;
  const size_t size = strlen(word);
  while (text < end) {
    const size_t found = strspn(text, letters);
    if (found == size && text + size <= end && memcmp(text, word, size) == 0) return true;
    text += found + strcspn(text + found, letters);
  }
  return false;
}
