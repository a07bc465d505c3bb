/* print_test.c: text of others on a terminal, in a shell, in XML and in JSON. */
#include <criterion/criterion.h>

#include <math.h>
#include <unistd.h>

#include "conformance/text/print.h"
#include "conformance/trial/say.h"
#include "core/json.h"
#include "files_fixture.h"

TestSuite(print, .fini = files_gone, .timeout = 60);

static const char *const hostile[] = {"\033[2Jcleared",
                                      "bell\a",
                                      "two\nlines",
                                      "tab\there",
                                      "\xff\xfe",
                                      "c1 \xC2\x9B"
                                      "31m",
                                      "\xE2\x80\xAEleft",
                                      "\x7f",
                                      "cr\rover",
                                      "cut \xE2\x82",
                                      "\xED\xA0\x80",
                                      "nul-like \xC0\x80",
                                      "\xEF\xBB\xBF",
                                      "\b\b\b",
                                      "\xE2\x80\xA8"};

/* Tells whether all characters are shown and none acts. */
static bool is_harmless(const char *text) {
  for (const unsigned char *at = (const unsigned char *)text; *at != 0; ++at)
    if (*at < 0x20 || *at >= 0x7F) return false;
  return true;
}

Test(print, shown) {
  cr_expect_str_eq(text_shown("\033[31mred\033[0m"), "\\x1b[31mred\\x1b[0m");
  cr_expect_str_eq(text_shown("a\nb\tc\r\a"), "a\\nb\\tc\\r\\x07");
  cr_expect_str_eq(text_shown("\xC2\x9B"
                              "1m\xE2\x80\xAE"),
                   "\\u009b1m\\u202e");
  cr_expect_str_eq(text_shown("\xff|\xE2\x82"), "\\xff|\\xe2\\x82");
  const char *plain = "κ·σ ≤ 1, C:\\path, 😀";
  cr_expect(text_shown(plain) == plain, "text without any is itself");
  for (size_t i = 0; i < sizeof hostile / sizeof *hostile; ++i)
    cr_expect(is_harmless(text_shown(hostile[i])), "%zu", i);
  static char big[20000];
  memset(big, '\a', sizeof big - 1);
  cr_expect_lt(strlen(text_shown(big)), (size_t)TEXT_SHOWN);
  const char *first = text_shown("\a1"), *second = text_shown("\a2");
  cr_expect(strcmp(first, "\\x071") == 0 && strcmp(second, "\\x072") == 0, "both live");
}

static char *written(void (*put)(FILE *to, const char *text), const char *text) {
  char *printed = NULL;
  size_t size = 0;
  FILE *to = open_memstream(&printed, &size);
  put(to, text);
  (void)fclose(to);
  return printed;
}

/* The shell makes the same bytes of the word, and the word itself shows no control character. */
Test(print, shell) {
  for (size_t i = 0; i < sizeof hostile / sizeof *hostile; ++i) {
    char text[200], script[1000], command[400], got[300] = "";
    (void)snprintf(text, sizeof text, "it's \\ %s 'end'", hostile[i]);
    char *word = written(text_shell, text);
    for (const unsigned char *at = (const unsigned char *)word; *at != 0; ++at)
      cr_expect(*at >= 0x20 && *at != 0x7F, "%s", word);
    (void)snprintf(script, sizeof script, "printf %%s %s", word);
    (void)snprintf(command, sizeof command, "bash %s", files_put("word.sh", script, strlen(script)));
    FILE *shell = popen(command, "r");
    const size_t size = fread(got, 1, sizeof got - 1, shell);
    got[size] = '\0';
    (void)pclose(shell);
    cr_expect_str_eq(got, text, "%zu: %s", i, word);
    free(word);
  }
  char *word = written(text_shell, "it's");
  cr_expect_str_eq(word, "'it'\\''s'");
  free(word);
}

Test(print, xml_and_json) {
  json_reader *reader = json_open();
  for (size_t i = 0; i < sizeof hostile / sizeof *hostile; ++i) {
    const json_value *value = NULL;
    assay_error error = {""};
    char *xml = written(text_xml, hostile[i]), *json = written(text_json, hostile[i]);
    for (const unsigned char *at = (const unsigned char *)xml; *at != 0; ++at)
      cr_expect(*at >= 0x20, "%zu: XML has no byte 0x%02x", i, *at);
    cr_expect_null(strstr(xml, "\xff"), "%zu", i);
    cr_expect_eq(json_parse(reader, json, strlen(json), &value, &error), ASSAY_OK, "%s: %s", json, error.text);
    free(xml);
    free(json);
  }
  json_close(reader);
}

static const char *wrong_words(assay_dtype dtype, double got, double expected, double allowed) {
  static char text[240];
  say_wrong(dtype, got, expected, allowed, text, sizeof text);
  return text;
}

Test(print, a_wrong_element) {
  cr_expect_str_eq(wrong_words(ASSAY_F32, 1, 2, 0.25), "got 1, expected 2, error 1 is 4 times the allowed 0.25");
  cr_expect_str_eq(wrong_words(ASSAY_F32, 1, 2, 0), "got 1, expected exactly 2, off by 4.194e+06 ulp of f32");
  /* Half of the least number allows nothing but the rounding of a store. */
  cr_expect_str_eq(wrong_words(ASSAY_F32, 7, 0, 0x1p-150), "got 7, expected exactly 0, off by 4.995e+45 ulp of f32");
  cr_expect_str_eq(wrong_words(ASSAY_F16, 7, 1, 0x1p-25), "got 7, expected exactly 1, off by 6144 ulp of f16");
  cr_expect_str_eq(wrong_words(ASSAY_F16, 7, 1, 0x1p-24),
                   "got 7, expected 1, error 6 is 1.01e+08 times the allowed 5.96e-08");
  cr_expect_str_eq(wrong_words(ASSAY_I32, 7, 0, 0), "got 7, expected exactly 0, off by 7");
  /* NaN and Inf are no number of times away. */
  cr_expect_str_eq(wrong_words(ASSAY_F32, NAN, 0, 1e-7), "got nan, expected 0");
  cr_expect_str_eq(wrong_words(ASSAY_F32, -INFINITY, 3, 1e-7), "got -inf, expected 3");
  cr_expect_str_eq(wrong_words(ASSAY_F32, 1, INFINITY, NAN), "got 1, expected exactly inf");
}

/* A process number comes again: a file of the same name was left by a run that was killed. */
Test(print, a_file_left_by_a_killed_run) {
  char folder[] = "/tmp/assay-print-XXXXXX", path[128];
  text_file file[3];
  assay_error error = {""};
  cr_assert_not_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/r.xml", folder);
  for (int i = 0; i < 3; ++i)
    cr_assert_eq(text_open(&file[i], path, &error), ASSAY_OK, "%d: %s", i, error.text);
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < i; ++j)
      cr_expect_str_neq(file[i].beside, file[j].beside);
  for (int i = 0; i < 2; ++i)
    text_discard(&file[i]);
  (void)fputs("whole", file[2].stream);
  cr_expect_eq(text_close(&file[2], &error), ASSAY_OK, "%s", error.text);
  cr_expect_eq(remove(path), 0);
  cr_expect_eq(rmdir(folder), 0, "nothing else was left in the folder");
}
