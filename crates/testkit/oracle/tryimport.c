/*
 * The kernel's half of `zpool import`, in user space: takes the configuration that libzfs put together
 * from labels on standard input (packed nvlist), tries to load the pool with libzpool, and gives back
 * what ZFS_IOC_POOL_TRYIMPORT would. libzpool leaves spares and cache devices out, the kernel doesn't.
 */
#include <stdlib.h>
#include <unistd.h>

typedef struct nvlist nvlist_t;
int nvlist_unpack(char *, size_t, nvlist_t **, int);
int nvlist_pack(nvlist_t *, char **, size_t *, int, int);
void kernel_init(int);
nvlist_t *spa_tryimport(nvlist_t *);

enum { MODE_READ = 1, LIMIT = 1 << 24 };

int
main(void)
{
	char *in = malloc(LIMIT), *out = NULL;
	size_t len = 0, outlen = 0;
	ssize_t n;
	nvlist_t *config, *result;

	while ((n = read(0, in + len, LIMIT - len)) > 0)
		len += n;
	if (nvlist_unpack(in, len, &config, 0) != 0)
		return (2);
	kernel_init(MODE_READ);
	if ((result = spa_tryimport(config)) == NULL)
		return (3);
	if (nvlist_pack(result, &out, &outlen, 0, 0) != 0)
		return (4);
	while (outlen > 0 && (n = write(1, out, outlen)) > 0) {
		out += n;
		outlen -= n;
	}
	/* Without running libzpool's exit handlers, which expect a clean shutdown. */
	_exit(outlen != 0);
}
