/* Speed of libzpool's fletcher4 and AES-256-GCM: one thread, blocks of 128 KiB, GB a second of processor time, the best of five runs.
 * The functions are OpenZFS's, found at run time; the structures are those that they take (2.3 and 2.4, 64-bit).
 *
 *   primitives LIBZPOOL
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#define BLOCK (128 << 10)

struct mechanism { uint64_t type; void *param; size_t len; };
struct gcm { unsigned char *iv; unsigned long iv_len, iv_bits; unsigned char *aad; unsigned long aad_len, tag_bits; };
struct key { unsigned bits; void *data; };
struct data { int format; long offset; size_t length; struct iovec raw; };

static void *lib;

static void *need(const char *name) {
	void *found = dlsym(lib, name);
	if (!found) { fprintf(stderr, "%s: %s\n", name, dlerror()); exit(1); }
	return found;
}

static double seconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double rate(void (*work)(void)) {
	double best = 0;
	for (int run = 0; run < 5; run++) {
		double start = seconds(), now;
		long rounds = 0;
		do { work(); rounds++; now = seconds(); } while (now - start < 0.1);
		double got = rounds * (double)BLOCK / (now - start) / 1e9;
		if (got > best) best = got;
	}
	return best;
}

static unsigned char plain[BLOCK], cipher[BLOCK + 16], back[BLOCK + 16], iv[12] = {1, 2, 3}, key_bytes[32] = {7};
static uint64_t sum[4];
static void (*fletcher)(const void *, uint64_t, const void *, void *);
static int (*encrypt)(struct mechanism *, struct data *, struct key *, void *, struct data *);
static int (*decrypt)(struct mechanism *, struct data *, struct key *, void *, struct data *);
static struct gcm params = { iv, 12, 96, NULL, 0, 128 };
static struct mechanism mechanism = { 0, &params, sizeof params };
static struct key key = { 256, key_bytes };
static void *template;

static void check(int failed) { if (failed) { fprintf(stderr, "failed: %d\n", failed); exit(1); } }
static void sum_up(void) { fletcher(plain, BLOCK, NULL, sum); }
static void seal(void) {
	struct data in = { 1, 0, BLOCK, { plain, BLOCK } }, out = { 1, 0, BLOCK + 16, { cipher, BLOCK + 16 } };
	check(encrypt(&mechanism, &in, &key, template, &out));
}
static void unseal(void) {
	struct data in = { 1, 0, BLOCK + 16, { cipher, BLOCK + 16 } }, out = { 1, 0, BLOCK, { back, BLOCK } };
	check(decrypt(&mechanism, &in, &key, template, &out));
}

int main(int argc, char **argv) {
	if (argc != 2 || !(lib = dlopen(argv[1], RTLD_NOW))) { fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "which library?"); return 1; }
	((void (*)(int))need("kernel_init"))(1);
	fletcher = need("fletcher_4_native");
	encrypt = need("crypto_encrypt");
	decrypt = need("crypto_decrypt");
	for (int i = 0; i < BLOCK; i++) plain[i] = (unsigned)i * 2654435761u >> 11;
	printf("fletcher4 %.2f\n", rate(sum_up));
	mechanism.type = ((uint64_t (*)(const char *))need("crypto_mech2id"))("CKM_AES_GCM");
	check(((int (*)(struct mechanism *, struct key *, void **))need("crypto_create_ctx_template"))(&mechanism, &key, &template));
	double sealed = rate(seal), unsealed = rate(unseal);
	if (memcmp(plain, back, BLOCK)) { fprintf(stderr, "the block came back changed\n"); return 1; }
	printf("aes-256-gcm %.2f %.2f\n", sealed, unsealed);
	return 0;
}
