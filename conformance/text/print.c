/* print.c: escapes, quoting, and files that appear only when whole. */
#define _POSIX_C_SOURCE 200809L
#include "print.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/files/bytes.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Returns the bytes of the well-formed UTF-8 character at `at`, or 0. Overlong forms and surrogates are not well
 * formed. */
static int utf8_length(const unsigned char *at) {
  const unsigned char c = at[0];
  int more = 0;
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) more = 1;
  if (c >= 0xE0 && c <= 0xEF) more = 2;
  if (c >= 0xF0 && c <= 0xF4) more = 3;
  for (int i = 1; i <= more; ++i)
    if ((at[i] & 0xC0) != 0x80) return 0;
  if (c == 0xE0 && at[1] < 0xA0) return 0;
  if (c == 0xED && at[1] > 0x9F) return 0;
  if (c == 0xF0 && at[1] < 0x90) return 0;
  if (c == 0xF4 && at[1] > 0x8F) return 0;
  return more > 0 ? more + 1 : 0;
}

/* Writes a character that needs no escape, or U+FFFD for a byte that is not UTF-8. Returns the number of bytes read. */
static int put_character(FILE *to, const unsigned char *at) {
  const int length = utf8_length(at);
  if (length == 0) {
    (void)fputs(replacement, to);
    return 1;
  }
  (void)fwrite(at, 1, (size_t)length, to);
  return length;
}

void text_json(FILE *to, const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  (void)fputc('"', to);
  while (*at != 0) {
    if (*at == '"' || *at == '\\')
      (void)fprintf(to, "\\%c", *at++);
    else if (*at == '\n')
      (void)fputs("\\n", to), ++at;
    else if (*at < 0x20 || *at == 0x7F)
      (void)fprintf(to, "\\u%04x", *at++);
    else
      at += put_character(to, at);
  }
  (void)fputc('"', to);
}

void text_json_number(FILE *to, double value) {
  if (assay_is_finite(value))
    (void)fprintf(to, "%.6g", value);
  else
    (void)fputs("null", to);
}

void text_xml(FILE *to, const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  while (*at != 0) {
    switch (*at) {
    case '&':
      (void)fputs("&amp;", to), ++at;
      break;
    case '<':
      (void)fputs("&lt;", to), ++at;
      break;
    case '>':
      (void)fputs("&gt;", to), ++at;
      break;
    case '"':
      (void)fputs("&quot;", to), ++at;
      break;
    case '\'':
      (void)fputs("&apos;", to), ++at;
      break;
    case '\t':
    case '\n':
    case '\r':
      (void)fprintf(to, "&#%d;", *at++);
      break;
    default:
      /* Control characters do not exist in XML 1.0, not even escaped; nor do U+FFFE and U+FFFF. */
      if (*at < 0x20 || (at[0] == 0xEF && at[1] == 0xBF && (at[2] == 0xBE || at[2] == 0xBF))) {
        (void)fputs(replacement, to);
        at += *at < 0x20 ? 1 : 3;
      } else {
        at += put_character(to, at);
      }
    }
  }
}

/* ---- text of others ----------------------------------------------------------------------------------- */

/* Returns the number of the well-formed character at `at`, which has `length` bytes. */
static uint32_t code_of(const unsigned char *at, int length) {
  uint32_t code = length == 1 ? at[0] : at[0] & (0x7Fu >> length);
  for (int i = 1; i < length; ++i)
    code = code << 6 | (at[i] & 0x3Fu);
  return code;
}

/* Tells whether a character acts on a terminal instead of being shown. Such are controls of 7 and 8 bits, separators of
 * lines, marks of direction, and the mark of byte order. */
static bool acts(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x200E && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

/* Returns true if all of the text may be shown as it is. */
static bool is_plain(const char *text) {
  for (const unsigned char *at = (const unsigned char *)text; *at != 0;) {
    const int length = utf8_length(at);
    if (length == 0 || acts(code_of(at, length))) return false;
    at += length;
  }
  return true;
}

const char *text_shown(const char *text) {
  enum { RING = 8, LONGEST = 12 };
  static char ring[RING][TEXT_SHOWN];
  static unsigned next;
  if (is_plain(text)) return text;
  char *made = ring[next++ % RING];
  size_t used = 0;
  for (const unsigned char *at = (const unsigned char *)text; *at != 0 && used + LONGEST < TEXT_SHOWN;) {
    static const char named[] = "\t\n\r", letter[] = "tnr";
    const int length = utf8_length(at);
    const uint32_t code = length > 0 ? code_of(at, length) : at[0];
    const char *known = strchr(named, (int)code < 0x20 ? (int)code : 'x');
    if (length > 0 && !acts(code)) {
      memcpy(made + used, at, (size_t)length);
      used += (size_t)length;
    } else if (known != NULL) {
      used += (size_t)snprintf(made + used, LONGEST, "\\%c", letter[known - named]);
    } else {
      used +=
          (size_t)snprintf(made + used, LONGEST, code < 0x100 && length < 2 ? "\\x%02x" : "\\u%04x", (unsigned)code);
    }
    at += length > 0 ? length : 1;
  }
  made[used] = '\0';
  return made;
}

/* Writes a word that holds characters which act, with every one of their bytes as an octal escape. */
static void shell_escaped(FILE *to, const char *text) {
  (void)fputs("$'", to);
  for (const unsigned char *at = (const unsigned char *)text; *at != 0;) {
    const int length = utf8_length(at), bytes = length > 0 ? length : 1;
    if (length > 0 && !acts(code_of(at, length))) {
      if (*at == '\'' || *at == '\\') (void)fputc('\\', to);
      (void)fwrite(at, 1, (size_t)bytes, to);
    } else {
      for (int i = 0; i < bytes; ++i)
        (void)fprintf(to, "\\%03o", at[i]);
    }
    at += bytes;
  }
  (void)fputc('\'', to);
}

void text_shell(FILE *to, const char *text) {
  if (!is_plain(text)) {
    shell_escaped(to, text);
    return;
  }
  (void)fputc('\'', to);
  for (; *text != '\0'; ++text)
    if (*text == '\'')
      (void)fputs("'\\''", to);
    else
      (void)fputc(*text, to);
  (void)fputc('\'', to);
}

void text_count(FILE *to, int64_t count) {
  char digits[32];
  const int size = snprintf(digits, sizeof digits, "%lld", (long long)count);
  for (int i = 0; i < size; ++i) {
    if (i > 0 && (size - i) % 3 == 0) (void)fputc(',', to);
    (void)fputc(digits[i], to);
  }
}

/* ---- files that an interruption would leave ----------------------------------------------------------- */

enum { MOST_PENDING = 8 };
static char pending[MOST_PENDING][sizeof((text_file *)NULL)->beside];

static void note_pending(const char *path) {
  for (int i = 0; i < MOST_PENDING; ++i)
    if (pending[i][0] == '\0') {
      (void)snprintf(pending[i], sizeof pending[i], "%s", path);
      return;
    }
}

static void forget_pending(const char *path) {
  for (int i = 0; i < MOST_PENDING; ++i)
    if (strcmp(pending[i], path) == 0) pending[i][0] = '\0';
}

void text_remove_pending(void) {
  for (int i = 0; i < MOST_PENDING; ++i)
    if (pending[i][0] != '\0') (void)unlink(pending[i]);
}

/* ---- files ------------------------------------------------------------------------------------------- */

static assay_status take_path(text_file *file, const char *path, assay_error *error) {
  *file = (text_file){NULL, "", "", false, 0};
  if (path[0] == '\0' || strlen(path) >= sizeof file->path)
    return assay_fail(error, ASSAY_ERR_INPUT, "report: a path of 1 to %zu bytes, found %zu", sizeof file->path - 1,
                      strlen(path));
  memcpy(file->path, path, strlen(path) + 1);
  return file_check_regular(path, error); /* a rename would put the file in place of a device */
}

enum { OTHER_NAMES = 100 };

assay_status text_open(text_file *file, const char *path, assay_error *error) {
  if (take_path(file, path, error) != ASSAY_OK) return ASSAY_ERR_INPUT;
  /* A killed process leaves its file, and process numbers come again, in containers the same ones. */
  for (int i = 0; i < OTHER_NAMES && file->stream == NULL && (i == 0 || errno == EEXIST); ++i) {
    char other[16] = "";
    if (i > 0) (void)snprintf(other, sizeof other, ".%d", i);
    (void)snprintf(file->beside, sizeof file->beside, "%s.%ld%s", path, (long)getpid(), other);
    file->stream = fopen(file->beside, "wx");
  }
  if (file->stream == NULL) return assay_fail(error, ASSAY_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
  note_pending(file->beside);
  (void)setvbuf(file->stream, NULL, _IOLBF, 1 << 16); /* an interrupted process leaves whole lines */
  return ASSAY_OK;
}

assay_status text_open_partial(text_file *file, const char *path, int64_t keep_bytes, assay_error *error) {
  if (take_path(file, path, error) != ASSAY_OK) return ASSAY_ERR_INPUT;
  (void)snprintf(file->beside, sizeof file->beside, "%s" TEXT_PARTIAL, path);
  const int fd = open(file->beside, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  const bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
  if (fd >= 0 && !locked) {
    (void)close(fd);
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: another run is writing it", file->beside);
  }
  if (fd >= 0 && ftruncate(fd, (off_t)(keep_bytes > 0 ? keep_bytes : 0)) == 0 && lseek(fd, 0, SEEK_END) >= 0)
    file->stream = fdopen(fd, "r+");
  if (file->stream == NULL) {
    const int why = errno;
    if (fd >= 0) (void)close(fd);
    return assay_fail(error, ASSAY_ERR_IO, "%s: cannot be written: %s", path, strerror(why));
  }
  (void)setvbuf(file->stream, NULL, _IOLBF, 1 << 16);
  file->partial = true;
  return ASSAY_OK;
}

void text_keep(text_file *file) {
  if (file->stream != NULL) (void)fclose(file->stream);
  file->stream = NULL;
}

void text_discard(text_file *file) {
  if (file->stream == NULL) return;
  (void)fclose(file->stream);
  (void)remove(file->beside);
  forget_pending(file->beside);
  file->stream = NULL;
}

void text_note(text_file *file) {
  if (file->stream != NULL && ferror(file->stream) && file->why == 0) file->why = errno;
}

assay_status text_close(text_file *file, assay_error *error) {
  if (file->stream == NULL) return ASSAY_OK;
  FILE *stream = file->stream;
  file->stream = NULL;
  errno = 0;
  const bool bad = ferror(stream) != 0;
  const bool flushed = fflush(stream) == 0 && fsync(fileno(stream)) == 0;
  int why = file->why != 0 ? file->why : errno;
  const bool closed = fclose(stream) == 0;
  if (why == 0) why = errno;
  forget_pending(file->beside);
  if (!bad && flushed && closed) {
    if (rename(file->beside, file->path) == 0) return ASSAY_OK;
    why = errno;
  }
  if (!file->partial) (void)remove(file->beside);
  return assay_fail(error, ASSAY_ERR_IO, "%s: cannot be written: %s%s%s", file->path,
                    why != 0 ? strerror(why) : "an earlier write failed",
                    file->partial ? "; what was written is in " : "", file->partial ? file->beside : "");
}
