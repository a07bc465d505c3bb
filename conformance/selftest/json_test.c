/* json_test.c: what is JSON is read, what is not is refused with its column. */
#include <criterion/criterion.h>

#include "core/json.h"

static json_reader *reader;
static assay_error error;

static const json_value *parsed(const char *text) {
  const json_value *value = NULL;
  if (reader == NULL) reader = json_open();
  error.text[0] = '\0';
  return json_parse(reader, text, strlen(text), &value, &error) == ASSAY_OK ? value : NULL;
}

static void close_reader(void) {
  json_close(reader);
}

Test(json, values, .fini = close_reader) {
  const json_value *v = parsed(" {\"a\":[1,-2.5e3,true,null,\"x\"],\"n\":18446744073709551615,\"o\":{\"k\":false}} ");
  cr_assert_not_null(v, "%s", error.text);
  cr_expect_eq(json_unsigned(v, "n", 0), UINT64_MAX);
  const json_value *a = json_member(v, "a")->child;
  cr_expect_eq(a->number, 1);
  cr_expect_eq(a->next->number, -2500);
  cr_expect(a->next->next->kind == JSON_BOOL && a->next->next->number == 1);
  cr_expect_eq(a->next->next->next->kind, JSON_NULL);
  cr_expect_str_eq(a->next->next->next->next->text, "x");
  cr_expect_eq(json_flag(json_member(v, "o"), "k", true), false);
  cr_expect_str_eq(json_text(v, "none", "-"), "-");
  cr_expect_eq(json_number(v, "a", 7), 7, "another kind gives the fallback");
}

Test(json, strings, .fini = close_reader) {
  cr_expect_str_eq(parsed("\"a\\n\\\"\\\\\\/\\u00e9\\uD83D\\uDE00\"")->text, "a\n\"\\/é😀");
  cr_expect_str_eq(parsed("\"\\u0000|\\uD800|\"")->text, "\xEF\xBF\xBD|\xEF\xBF\xBD|");
}

Test(json, refusals, .fini = close_reader) {
  static const char *const bad[] = {"",      "{",        "[1,]",    "{\"a\"}",     "{\"a\":1,}", "01",     "1.",
                                    "1e",    "\"a",      "\"\\x\"", "\"\\u12g4\"", "tru",        "[1 2]",  "1 2",
                                    "{a:1}", "\"a\nb\"", "nan",     "-",           "[\"\\",      "\"\\u1", "+1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    cr_expect_null(parsed(bad[i]), "%s", bad[i]);
    cr_expect_not_null(strstr(error.text, "column "), "%s", bad[i]);
  }
  char deep[400];
  memset(deep, '[', 200);
  memset(deep + 200, ']', 199);
  deep[399] = '\0';
  cr_expect_null(parsed(deep));
  cr_expect_not_null(strstr(error.text, "64 levels"), "%s", error.text);
}

/* A key that an object has twice is refused: one reader takes the first value, another one the last. */
Test(json, keys, .fini = close_reader) {
  cr_expect_null(parsed("{\"a\":1,\n \"o\":\n{\"k\":1,\"j\":2,\"k\":3}}"));
  cr_expect_not_null(strstr(error.text, "line 3: found key \"k\" twice in one object"), "%s", error.text);
  cr_expect_null(parsed("{\"\\u0061\":1,\"a\":1}"), "an escape is the same key");
  cr_expect_not_null(parsed("[{\"a\":1},{\"a\":1,\"o\":{\"a\":2}}]"), "%s", error.text);
  char many[4000] = "{";
  for (int i = 0; i < 200; ++i)
    (void)snprintf(many + strlen(many), sizeof many - strlen(many), "\"k%d\":%d,", i, i);
  (void)snprintf(many + strlen(many), sizeof many - strlen(many), "\"k%d\":0}", 200);
  cr_expect_not_null(parsed(many), "%s", error.text);
  (void)snprintf(strstr(many, "\"k200\""), 12, "\"k077\":0}");
  cr_expect_not_null(parsed(many), "%s", error.text);
  (void)snprintf(strstr(many, "\"k077\""), 12, "\"k77\":0}");
  cr_expect_null(parsed(many), "200 keys, one twice");
}

/* A text of several lines is refused with the line, and with the key that was read last. */
Test(json, places, .fini = close_reader) {
  static const struct {
    const char *text, *says;
  } bad[] = {{"{\n \"a\": [1,\n  2}", "line 3, column 4, after key \"a\": found byte 0x7d, expected ',' or ']'"},
             {"{\n \"a\": 1,\n \"b\": nan\n}", "line 3, column 7, after key \"b\": found byte 0x6e"},
             {"{\n\n", "line 3, column 1: the text ends"},
             {"{\"a\" 1}\n", "column 6, after key \"a\": found byte 0x31, expected ':'"},
             {"{a}", "column 2: found byte 0x61"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    cr_expect_null(parsed(bad[i].text), "%s", bad[i].text);
    cr_expect_eq(strncmp(error.text, bad[i].says, strlen(bad[i].says)), 0, "wanted %s: %s", bad[i].says, error.text);
  }
  const json_value *v = parsed("{\n \"a\":\n [1,\n 2]}");
  cr_expect(v->line == 1 && json_member(v, "a")->line == 3 && json_member(v, "a")->child->next->line == 4);
}

/* Every prefix of a line is refused, or read, but never past its end. */
Test(json, prefixes, .fini = close_reader) {
  static const char line[] = "{\"case\":\"op k=\\u00e9\",\"n\":[1.5e-3,null],\"o\":{}}";
  for (size_t size = 0; size < sizeof line - 1; ++size) {
    const json_value *value = NULL;
    char *copy = malloc(size + 1);
    memcpy(copy, line, size);
    if (reader == NULL) reader = json_open();
    error.text[0] = '\0';
    cr_expect_neq(json_parse(reader, copy, size, &value, &error), ASSAY_OK, "%zu", size);
    free(copy);
  }
}
