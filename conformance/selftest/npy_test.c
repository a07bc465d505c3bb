/* npy_test.c: every legal form of .npy is read, what is not legal is refused by its field. */
#include <criterion/criterion.h>

#include "conformance/text/npy.h"
#include "core/dtype.h"
#include "files_fixture.h"

TestSuite(npy_forms, .fini = files_gone, .timeout = 20);

static assay_error error;

/* Writes a file with this header and these elements. */
static const char *put(const char *name, int version, const char *header, const void *data, size_t bytes) {
  static unsigned char file[8192];
  const size_t size = strlen(header), lead = version == 1 ? 10 : 12;
  const unsigned char begin[12] = {0x93,
                                   'N',
                                   'U',
                                   'M',
                                   'P',
                                   'Y',
                                   (unsigned char)version,
                                   0,
                                   (unsigned char)(size & 0xFF),
                                   (unsigned char)(size >> 8)};
  memcpy(file, begin, lead);
  memcpy(file + lead, header, size);
  memcpy(file + lead + size, data, bytes);
  return files_put(name, file, lead + size + bytes);
}

static npy_tensor read_as(const char *path, const char *dtype) {
  npy_tensor t = {0};
  error.text[0] = '\0';
  cr_assert_eq(npy_read(path, dtype, NULL, &t, &error), ASSAY_OK, "%s: %s", path, error.text);
  return t;
}

#define HEAD(descr, order, shape) "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }  \n"

Test(npy_forms, headers) {
  static const float value[6] = {1, 2, 3, 4, 5, 6};
  static const struct {
    int version;
    const char *header;
  } legal[] = {{1, HEAD("<f4", "False", "(2, 3)")},
               {2, HEAD("<f4", "False", "(2, 3)")},
               {3, HEAD("<f4", "False", "(2, 3)")},
               {1, HEAD("<f4", "False", "(2L, 3L)")},
               {1, HEAD("<f4", "False", "(2,3,)")},
               {1, HEAD("=f4", "False", "(2, 3)")},
               {1, "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2, 3)}"},
               {1, "{'shape': (2, 3), 'fortran_order': False, 'descr': u'<f4'}\n"},
               {1, "{ 'descr' : '<f4',\n 'fortran_order' : False,\n 'shape' : ( 2 , 3 ) , }"}};
  for (size_t i = 0; i < sizeof legal / sizeof *legal; ++i) {
    npy_tensor t = read_as(put("a.npy", legal[i].version, legal[i].header, value, sizeof value), NULL);
    cr_expect(t.type == ASSAY_F32 && t.rank == 2 && t.shape[0] == 2 && t.shape[1] == 3, "%s", legal[i].header);
    cr_expect_eq(npy_load(&t, 4), 5, "%s", legal[i].header);
    npy_free(&t);
  }
  npy_tensor t = read_as(put("a.npy", 1, HEAD("<f4", "False", "()"), value, 4), NULL);
  cr_expect(t.rank == 0 && t.count == 1 && npy_load(&t, 0) == 1);
  npy_free(&t);
  t = read_as(put("a.npy", 1, HEAD("<f4", "False", "(0, 4)"), value, 0), NULL);
  cr_expect(t.rank == 2 && t.count == 0);
  npy_free(&t);
}

Test(npy_forms, orders) {
  static const float columns[6] = {1, 4, 2, 5, 3, 6};
  static const unsigned char big[12] = {0x3F, 0x80, 0, 0, 0xC0, 0, 0, 0, 0x40, 0x40, 0, 0};
  static const unsigned char big_half[4] = {0x3C, 0x00, 0xC0, 0x00};
  static float cube[24], wanted[24];
  npy_tensor t = read_as(put("a.npy", 1, HEAD("<f4", "True", "(2, 3)"), columns, sizeof columns), NULL);
  for (int i = 0; i < 6; ++i)
    cr_expect_eq(npy_load(&t, i), i + 1);
  npy_free(&t);
  t = read_as(put("a.npy", 1, HEAD(">f4", "False", "(3,)"), big, sizeof big), NULL);
  cr_expect(t.type == ASSAY_F32 && npy_load(&t, 0) == 1 && npy_load(&t, 1) == -2 && npy_load(&t, 2) == 3);
  npy_free(&t);
  t = read_as(put("a.npy", 1, HEAD(">f2", "False", "(2,)"), big_half, sizeof big_half), NULL);
  cr_expect(t.type == ASSAY_F16 && npy_load(&t, 0) == 1 && npy_load(&t, 1) == -2);
  npy_free(&t);
  for (int i = 0; i < 24; ++i) {
    wanted[i] = (float)i;
    cube[i / 12 + 2 * (i / 4 % 3) + 6 * (i % 4)] = (float)i; /* shape (2, 3, 4), the first axis the fastest */
  }
  t = read_as(put("a.npy", 1, HEAD("<f4", "True", "(2, 3, 4)"), cube, sizeof cube), NULL);
  cr_expect_eq(memcmp(t.data, wanted, sizeof wanted), 0);
  npy_free(&t);
}

/* ml_dtypes writes bfloat16 as <V2, float8 as <V1, |V1 or <f1; what a name or the caller says is taken. */
Test(npy_forms, narrow_types) {
  static const uint16_t bits[2] = {0x3F80, 0xC000};
  static const uint8_t eight[2] = {0x38, 0x3C}; /* e4m3: 1, 1.5; e5m2: 0.5, 1 */
  static const struct {
    const char *name, *descr, *dtype;
    int type;
    double second;
  } files[] = {{"a.npy", "<V2", NULL, ASSAY_BF16, -2},      {"a.npy", "|V2", "bf16", ASSAY_BF16, -2},
               {"a.bf16.npy", "<i2", NULL, ASSAY_BF16, -2}, {"a.npy", "<i2", "bf16", ASSAY_BF16, -2},
               {"a.npy", "<i2", NULL, NPY_I16, -16384},     {"a.npy", "<u2", NULL, NPY_U16, 0xC000}};
  static const char *const one_byte[] = {"<V1", "|V1", "<f1", "|u1", "|i1", ">V1"};
  char header[200];
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    (void)snprintf(header, sizeof header, HEAD("%s", "False", "(2,)"), files[i].descr);
    npy_tensor t = read_as(put(files[i].name, 1, header, bits, sizeof bits), files[i].dtype);
    cr_expect(t.type == files[i].type && npy_load(&t, 1) == files[i].second, "%s: %s, %g", files[i].descr,
              npy_type_name(t.type), npy_load(&t, 1));
    npy_free(&t);
  }
  for (size_t i = 0; i < sizeof one_byte / sizeof *one_byte; ++i) {
    (void)snprintf(header, sizeof header, HEAD("%s", "False", "(2,)"), one_byte[i]);
    npy_tensor t = read_as(put("a.e4m3.npy", 1, header, eight, sizeof eight), NULL);
    cr_expect(t.type == ASSAY_E4M3 && npy_load(&t, 1) == 1.5, "%s", one_byte[i]);
    npy_free(&t);
    t = read_as(put("a.npy", 1, header, eight, sizeof eight), "e5m2");
    cr_expect(t.type == ASSAY_E5M2 && npy_load(&t, 1) == 1, "%s", one_byte[i]);
    npy_free(&t);
  }
}

Test(npy_forms, refused) {
  static const struct {
    const char *header, *says;
  } bad[] = {{HEAD("<c8", "False", "(1,)"), "header: descr: found '<c8', allowed f8, f4"},
             {HEAD("|O", "False", "(1,)"), "header: descr: found '|O', allowed"},
             {HEAD("<f16", "False", "(1,)"), "header: descr: found '<f16', allowed"},
             {HEAD("<V4", "False", "(1,)"), "header: descr: found '<V4', allowed"},
             {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "descr: found '[(', allowed f8"},
             {HEAD("<f4", "None", "(1,)"), "fortran_order: found 'None, ', allowed True, False"},
             {HEAD("<f4", "False", "[1]"), "shape: found '[1], }  ', allowed a tuple"},
             {HEAD("<f4", "False", "(-1,)"), "shape: found '-1,), }  ', allowed a tuple"},
             {HEAD("<f4", "False", "(1 2)"), "shape: found '2), }  ', allowed a tuple"},
             {HEAD("<f4", "False", "(1,"), "shape: found ', }  ', allowed a tuple"},
             {HEAD("<f4", "False", "(1, 1, 1, 1, 1, 1, 1)"), "shape: found more than 6 axes, allowed up to 6"},
             {HEAD("<f4", "False", "(99999999999999999999,)"), "shape: found '"},
             {HEAD("<f4", "False", "(4294967296, 4294967296)"), "shape: found too many elements"},
             {"{'descr': '<f4', 'shape': (1,)}", "header: fortran_order: missing, allowed descr, fortran_order, shape"},
             {"{'descr': '<f4', 'descr': '<f4'}", "key: found 'descr', allowed descr, fortran_order, shape, each once"},
             {"{'descr': '<f4', 'order': True}", "key: found 'order', allowed descr"},
             {HEAD("<f4", "False", "(1,)") "x", "end: found 'x', allowed blanks"},
             {"descr", "dictionary: found 'descr', allowed {"},
             {HEAD("<f4", "False", "(2,)"), "too short, expected 8 bytes of elements, found 4"},
             {HEAD("<f4", "False", "()") "", NULL}};
  const float one = 1;
  for (size_t i = 0; bad[i].says != NULL; ++i) {
    npy_tensor t;
    error.text[0] = '\0';
    cr_expect_eq(npy_read(put("bad.npy", 1, bad[i].header, &one, 4), NULL, NULL, &t, &error), ASSAY_ERR_INPUT, "%s",
                 bad[i].header);
    cr_expect_not_null(strstr(error.text, bad[i].says), "wanted %s: %s", bad[i].says, error.text);
    cr_expect_not_null(strstr(error.text, "bad.npy: "), "%s", error.text);
    cr_expect_null(t.data);
  }
}
