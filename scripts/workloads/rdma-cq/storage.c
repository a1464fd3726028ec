// SPDX-License-Identifier: GPL-2.0-only
/*
 * Storage over RDMA, both ends in this kernel: read from an NVMe namespace that the
 * NVMe target exports on a soft RoCE device, then take the controller away.
 *
 * usage: storage READS QUEUE_SIZE
 *
 * All completion queues of it are the kernel's own.
 */
#include "verbs.h"

#include "excuse.h"

#include <sys/mount.h>
#include <sys/stat.h>

#define NQN	"kstall"
#define CONFIG	"/sys/kernel/config"
#define SUBSYS	CONFIG "/nvmet/subsystems/" NQN
#define TARGET	CONFIG "/nvmet/ports/1"
#define BLOCK	4096
/* Seconds in which the kernel's driver has to find a way, and to complete a command. */
#define RESOLVED_S	3
#define COMPLETED_S	30

static void make(const char *path)
{
	if (mkdir(path, 0755))
		die("%s", path);
}

static void target(void)
{
	if (mount("configfs", CONFIG, "configfs", 0, NULL) && errno != EBUSY)
		die("configfs");
	make(SUBSYS);
	put(SUBSYS "/attr_allow_any_host", "1");
	make(SUBSYS "/namespaces/1");
	put(SUBSYS "/namespaces/1/device_path", "/dev/nullb0");
	put(SUBSYS "/namespaces/1/enable", "1");
	make(TARGET);
	put(TARGET "/addr_adrfam", "ipv4");
	put(TARGET "/addr_trtype", "rdma");
	put(TARGET "/addr_traddr", ADDRESS);
	put(TARGET "/addr_trsvcid", "4420");
	if (symlink(SUBSYS, TARGET "/subsystems/" NQN))
		die("port");
}

static int connect_to(unsigned int queue_size)
{
	char text[512];
	int instance, fd = open("/dev/nvme-fabrics", O_RDWR | O_CLOEXEC);
	double before = kept_waiting();
	ssize_t length;

	snprintf(text, sizeof(text),
		 "transport=rdma,traddr=" ADDRESS ",trsvcid=4420,nqn=" NQN ","
		 "nr_io_queues=1,queue_size=%u,keep_alive_tmo=60", queue_size);
	if (fd < 0)
		die("nvme-fabrics");
	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text)) {
		excuse("no connection", before, RESOLVED_S);
		die("cannot connect");
	}
	length = pread(fd, text, sizeof(text) - 1, 0);
	text[length > 0 ? length : 0] = 0;
	if (sscanf(text, "instance=%d", &instance) != 1)
		die("no instance in %s", text);
	close(fd);
	return instance;
}

static void attribute_of(int instance, const char *name, char *text, size_t room)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/class/nvme/nvme%d/%s", instance, name);
	if (!get(path, text, room))
		die("%s", path);
}

static unsigned int read_blocks(int instance, unsigned int reads)
{
	double before = kept_waiting();
	unsigned int i, done = 0;
	char path[64];
	void *block;
	int fd;

	snprintf(path, sizeof(path), "/dev/nvme%dn1", instance);
	/* A worker scans for the namespace, whose node can be there before it is. */
	while ((fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC)) < 0) {
		if (errno != ENOENT && errno != ENXIO)
			die("%s", path);
		nap(10 * MS);
	}
	if (posix_memalign(&block, BLOCK, BLOCK))
		die("memory");
	for (i = 0; i < reads; i++)
		done += pread(fd, block, BLOCK, (off_t)i * BLOCK) == BLOCK;
	close(fd);
	if (done < reads)
		excuse("not all blocks", before, COMPLETED_S);
	return done;
}

int main(int argc, char **argv)
{
	unsigned int reads = argc == 3 ? strtoul(argv[1], NULL, 0) : 0;
	unsigned int queue_size = argc == 3 ? strtoul(argv[2], NULL, 0) : 0;
	char path[64], sqsize[32], queues[32];
	unsigned int done;
	uint64_t before, after;
	int instance;

	if (!reads || !queue_size) {
		fprintf(stderr, "usage: storage READS QUEUE_SIZE\n");
		return 1;
	}
	close(open_device("rxe0").fd);
	target();
	instance = connect_to(queue_size);
	done = read_blocks(instance, reads);
	attribute_of(instance, "sqsize", sqsize, sizeof(sqsize));
	attribute_of(instance, "queue_count", queues, sizeof(queues));
	snprintf(path, sizeof(path), "/sys/class/nvme/nvme%d/delete_controller", instance);
	before = now();
	put(path, "1");
	after = now();
	printf("{\"what\": \"storage\", \"reads\": %u, \"sqsize\": %s, \"queues\": %s, "
	       "\"deleting\": %" PRIu64 ", \"deleted\": %" PRIu64 "}\n",
	       done, sqsize, queues, before, after);
	/* Remove the target as well, so that it can be created again. */
	if (unlink(TARGET "/subsystems/" NQN) || rmdir(TARGET))
		die("port");
	put(SUBSYS "/namespaces/1/enable", "0");
	if (rmdir(SUBSYS "/namespaces/1") || rmdir(SUBSYS))
		die("subsystem");
	return 0;
}
