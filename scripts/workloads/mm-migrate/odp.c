// SPDX-License-Identifier: GPL-2.0-only
/*
 * Move pages of which some are an on-demand-paging memory region of a soft RoCE device.
 *
 * usage: odp PAGES FIRST COUNT		the region: COUNT pages from page FIRST on
 *
 * The device is made on dummy0.  No library: the kernel's write() ABI needs three
 * commands, and a static program can have them anywhere.
 */
#include "mirror.h"

#include <linux/netlink.h>
#include <net/if.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>

#define ACCESS_LOCAL_WRITE	(1 << 0)
#define ACCESS_ON_DEMAND	(1 << 6)

static void up(const char *name)
{
	struct ifreq request = { 0 };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request))
		die("%s", name);
	request.ifr_flags |= IFF_UP;
	if (ioctl(fd, SIOCSIFFLAGS, &request))
		die("%s up", name);
	close(fd);
}

struct link {
	struct nlmsghdr head;
	char room[256];
};

static void attribute(struct link *link, unsigned short type, const char *text)
{
	struct nlattr *a = (void *)((char *)link + NLMSG_ALIGN(link->head.nlmsg_len));

	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + strlen(text) + 1;
	strcpy((char *)a + NLA_HDRLEN, text);
	link->head.nlmsg_len = NLMSG_ALIGN(link->head.nlmsg_len) + NLA_ALIGN(a->nla_len);
}

static void new_link(void)
{
	struct link link = { .head = {
		.nlmsg_len = NLMSG_HDRLEN,
		.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK),
		.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
	} };
	struct { struct nlmsghdr head; struct nlmsgerr error; char room[512]; } answer;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);

	attribute(&link, RDMA_NLDEV_ATTR_DEV_NAME, "rxe0");
	attribute(&link, RDMA_NLDEV_ATTR_LINK_TYPE, "rxe");
	attribute(&link, RDMA_NLDEV_ATTR_NDEV_NAME, "dummy0");
	if (fd < 0 || send(fd, &link, link.head.nlmsg_len, 0) < 0 ||
	    recv(fd, &answer, sizeof(answer), 0) < (ssize_t)NLMSG_HDRLEN + 4)
		die("netlink");
	errno = -answer.error.error;
	if (errno && errno != EEXIST)
		die("no link of type rxe");
	close(fd);
}

/* One command of the write() ABI; the words of `command` and `response` follow. */
static void verb(int fd, unsigned int number, void *command, size_t size, void *response,
		 size_t room)
{
	struct {
		struct ib_uverbs_cmd_hdr head;
		uint64_t body[16];
	} message = { .head = {
		.command = number,
		.in_words = (sizeof(struct ib_uverbs_cmd_hdr) + size) / 4,
		.out_words = room / 4,
	} };
	uint64_t where = (uintptr_t)response;
	size_t length = sizeof(struct ib_uverbs_cmd_hdr) + size;

	memcpy(message.body, command, size);
	/* Each of them begins with the address of its response. */
	memcpy(message.body, &where, sizeof(where));
	if (write(fd, &message, length) != (ssize_t)length)
		die("verb %u", number);
}

static void region(char *at, size_t pages)
{
	struct ib_uverbs_get_context context = { 0 };
	struct ib_uverbs_get_context_resp context_response = { 0 };
	struct ib_uverbs_alloc_pd pd = { 0 };
	struct ib_uverbs_alloc_pd_resp pd_response = { 0 };
	struct ib_uverbs_reg_mr mr = {
		.start = (uintptr_t)at,
		.hca_va = (uintptr_t)at,
		.length = pages * PAGE,
		.access_flags = ACCESS_LOCAL_WRITE | ACCESS_ON_DEMAND,
	};
	struct ib_uverbs_reg_mr_resp mr_response = { 0 };
	int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die("uverbs0");
	verb(fd, IB_USER_VERBS_CMD_GET_CONTEXT, &context, sizeof(context),
	     &context_response, sizeof(context_response));
	verb(fd, IB_USER_VERBS_CMD_ALLOC_PD, &pd, sizeof(pd), &pd_response,
	     sizeof(pd_response));
	mr.pd_handle = pd_response.pd_handle;
	verb(fd, IB_USER_VERBS_CMD_REG_MR, &mr, sizeof(mr), &mr_response,
	     sizeof(mr_response));
}

int main(int argc, char **argv)
{
	size_t pages = argc == 4 ? strtoul(argv[1], NULL, 0) : 0;
	size_t first = argc == 4 ? strtoul(argv[2], NULL, 0) : 0;
	size_t count = argc == 4 ? strtoul(argv[3], NULL, 0) : 0;
	struct moved m;
	char *at;

	if (!count || first + count > pages) {
		fprintf(stderr, "usage: odp PAGES FIRST COUNT\n");
		return 1;
	}
	at = map_pages(pages);
	move_to(at, pages, 0);
	up("dummy0");
	new_link();
	region(at + first * PAGE, count);
	printf("{\"what\": \"region\", \"addr\": %" PRIuPTR ", \"pages\": %zu}\n",
	       (uintptr_t)at + first * PAGE, count);
	m = move_to(at, pages, 1);
	say_moved("move", at, pages, 1, &m);
	return 0;
}
