/* sha256_test.c: the hash against the published examples, in every way its bytes can be cut. */
#include <criterion/criterion.h>

#include "core/files/sha256.h"

static void hash(const void *bytes, size_t count, size_t part, char text[SHA256_TEXT]) {
  sha256 s;
  sha256_begin(&s);
  for (size_t at = 0; at < count; at += part)
    sha256_add(&s, (const char *)bytes + at, count - at < part ? count - at : part);
  sha256_end(&s, text);
}

/* FIPS 180-4, examples of NIST. */
Test(sha256, published_examples) {
  static const struct {
    const char *text, *hash;
  } of[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
  };
  for (size_t i = 0; i < sizeof of / sizeof *of; ++i) {
    char text[SHA256_TEXT];
    hash(of[i].text, strlen(of[i].text), 64, text);
    cr_expect_str_eq(text, of[i].hash);
  }
}

Test(sha256, a_million_letters_in_parts) {
  static char letters[1000000];
  memset(letters, 'a', sizeof letters);
  const size_t parts[] = {1, 7, 63, 64, 65, 4096, sizeof letters};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    char text[SHA256_TEXT];
    hash(letters, sizeof letters, parts[i], text);
    cr_expect_str_eq(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", "parts of %zu",
                     parts[i]);
  }
}

Test(sha256, files) {
  char text[SHA256_TEXT];
  int64_t bytes = 0;
  assay_error error = {""};
  cr_expect_eq(sha256_file("/nowhere", text, &bytes, &error), ASSAY_ERR_INPUT);
  cr_assert_eq(sha256_file(ASSAY_SOURCE_DIR "/LICENSE", text, &bytes, &error), ASSAY_OK, "%s", error.text);
  cr_expect_gt(bytes, 1000);
}
