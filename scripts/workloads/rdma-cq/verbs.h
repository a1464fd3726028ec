/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the workloads share: soft RoCE and soft iWARP devices, and verbs on them.
 *
 * No library: what rdma-core's would bring along (udev) slows the start of every
 * guest, and it would choose how a completion queue (CQ) is created, while both ways
 * are to be seen here.  So this speaks the kernel's own interface: commands by write()
 * or ioctl(), and queues that the two drivers share with user space.
 *
 * Each program prints one JSON object a line: "what" was done, with what it saw
 * itself.  One that cannot do its work exits 1 and says why on stderr.  Waits have no
 * limit: the agent ends a program that takes too long, and knows how much time the host
 * gave.
 */
#ifndef VERBS_H
#define VERBS_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <pthread.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_netlink.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/rdma_user_rxe.h>
#include <rdma/siw-abi.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS	1000000ULL

/* Where soft RoCE has its device, and with which address; soft iWARP is on lo. */
#define NETDEV	"dummy0"
#define ADDRESS	"10.9.0.1"

/* From the kernel's include/rdma/ib_verbs.h, as the write() ABI has them. */
enum { CQ_ERR = 0, QP_ACCESS_ERR = 3 };
enum { RESET, INIT, RTR, RTS, SQD, SQE, ERR };
enum {
	STATE = 1 << 0, ACCESS_FLAGS = 1 << 3, PKEY_INDEX = 1 << 4, PORT = 1 << 5,
	AV = 1 << 7, PATH_MTU = 1 << 8, TIMEOUT = 1 << 9, RETRY_CNT = 1 << 10,
	RNR_RETRY = 1 << 11, RQ_PSN = 1 << 12, MAX_RD_ATOMIC = 1 << 13,
	MIN_RNR_TIMER = 1 << 15, SQ_PSN = 1 << 16, MAX_DEST_RD_ATOMIC = 1 << 17,
	DEST_QPN = 1 << 20,
};
enum { LOCAL_WRITE = 1 << 0, REMOTE_WRITE = 1 << 1 };
enum { WC_SUCCESS = 0, WC_FLUSHED = 5, WC_REMOTE_ACCESS = 10 };
enum { MTU_1024 = 3 };
enum { SIGNALED = 1 << 1 };

__attribute__((noreturn, format(printf, 1, 2)))
static inline void die(const char *format, ...)
{
	int error = errno;
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, " (%s)\n", strerror(error));
	exit(1);
}

static inline uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static inline void nap(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static inline pid_t tid(void)
{
	return syscall(SYS_gettid);
}

static inline void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		die("%s: cannot write %s", path, text);
	close(fd);
}

/* The first line of a file, without its end; false if there is no such file. */
static inline bool get(const char *path, char *text, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length;

	if (fd < 0)
		return false;
	length = read(fd, text, room - 1);
	close(fd);
	text[length > 0 ? length : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	return length >= 0;
}

/* ---- the network below ---- */

static inline struct ifreq request_for(const char *name)
{
	struct ifreq request = { 0 };

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	return request;
}

static inline void up(const char *name, const char *address)
{
	struct ifreq request = request_for(name);
	struct sockaddr_in *in = (void *)&request.ifr_addr;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (address) {
		in->sin_family = AF_INET;
		inet_pton(AF_INET, address, &in->sin_addr);
		if (ioctl(fd, SIOCSIFADDR, &request))
			die("%s: address", name);
		request = request_for(name);
	}
	if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request))
		die("%s", name);
	request.ifr_flags |= IFF_UP;
	if (ioctl(fd, SIOCSIFFLAGS, &request))
		die("%s up", name);
	close(fd);
}

/* ---- rdma netlink ---- */

struct message {
	struct nlmsghdr head;
	char room[256];
};

static inline struct message message_of(unsigned int command, unsigned int flags)
{
	return (struct message){ .head = {
		.nlmsg_len = NLMSG_HDRLEN,
		.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command),
		.nlmsg_flags = NLM_F_REQUEST | flags,
	} };
}

static inline void attribute(struct message *m, unsigned short type, const void *data,
			     size_t length)
{
	struct nlattr *a = (void *)((char *)m + NLMSG_ALIGN(m->head.nlmsg_len));

	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + length;
	memcpy((char *)a + NLA_HDRLEN, data, length);
	m->head.nlmsg_len = NLMSG_ALIGN(m->head.nlmsg_len) + NLA_ALIGN(a->nla_len);
}

static inline int rdma_socket(const struct message *m)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);

	if (fd < 0 || send(fd, m, m->head.nlmsg_len, 0) < 0)
		die("netlink");
	return fd;
}

/* `rdma link add NAME type TYPE netdev NETDEV`; it may be there already. */
static inline void new_link(const char *name, const char *type, const char *netdev)
{
	struct message m = message_of(RDMA_NLDEV_CMD_NEWLINK, NLM_F_ACK);
	struct { struct nlmsghdr head; struct nlmsgerr error; char room[512]; } answer;
	int fd;

	attribute(&m, RDMA_NLDEV_ATTR_DEV_NAME, name, strlen(name) + 1);
	attribute(&m, RDMA_NLDEV_ATTR_LINK_TYPE, type, strlen(type) + 1);
	attribute(&m, RDMA_NLDEV_ATTR_NDEV_NAME, netdev, strlen(netdev) + 1);
	fd = rdma_socket(&m);
	if (recv(fd, &answer, sizeof(answer), 0) < (ssize_t)NLMSG_HDRLEN + 4)
		die("netlink");
	close(fd);
	errno = -answer.error.error;
	if (errno && errno != EEXIST)
		die("no link of type %s", type);
}

/* Calls `see` for each attribute below `from`, also those in nested ones. */
static inline void each(const void *from, size_t length, const uint16_t *nests,
			void (*see)(void *, const struct nlattr *), void *to)
{
	const struct nlattr *a = from;
	size_t i;

	while (length >= NLA_HDRLEN && a->nla_len >= NLA_HDRLEN && a->nla_len <= length) {
		size_t step = NLA_ALIGN(a->nla_len);

		see(to, a);
		for (i = 0; nests[i]; i++)
			if ((a->nla_type & NLA_TYPE_MASK) == nests[i])
				each((char *)a + NLA_HDRLEN, a->nla_len - NLA_HDRLEN,
				     nests, see, to);
		if (step >= length)
			break;
		length -= step;
		a = (void *)((char *)a + step);
	}
}

static inline void dump(const struct message *m, const uint16_t *nests,
			void (*see)(void *, const struct nlattr *), void *to)
{
	static _Thread_local char room[65536] __attribute__((aligned(8)));
	int fd = rdma_socket(m);
	bool more = true;

	while (more) {
		ssize_t length = recv(fd, room, sizeof(room), 0);
		struct nlmsghdr *head = (void *)room;

		if (length <= 0)
			die("netlink");
		for (; NLMSG_OK(head, length); head = NLMSG_NEXT(head, length)) {
			if (head->nlmsg_type == NLMSG_ERROR) {
				errno = -((struct nlmsgerr *)NLMSG_DATA(head))->error;
				die("netlink dump");
			}
			more = more && head->nlmsg_type != NLMSG_DONE;
			if (more)
				each(NLMSG_DATA(head), head->nlmsg_len - NLMSG_HDRLEN,
				     nests, see, to);
		}
	}
	close(fd);
}

static inline uint32_t u32(const struct nlattr *a)
{
	uint32_t value;

	memcpy(&value, (char *)a + NLA_HDRLEN, sizeof(value));
	return value;
}

struct index_of {
	const char *name;
	uint32_t last;
	bool found;
	uint32_t index;
};

static inline void see_device(void *to, const struct nlattr *a)
{
	struct index_of *o = to;

	if (a->nla_type == RDMA_NLDEV_ATTR_DEV_INDEX)
		o->last = u32(a);
	if (a->nla_type == RDMA_NLDEV_ATTR_DEV_NAME &&
	    !strcmp((char *)a + NLA_HDRLEN, o->name)) {
		o->found = true;
		o->index = o->last;
	}
}

/* A line of `rdma resource show cq`. */
struct known {
	uint32_t depth, users, id, pid;
};

struct known_all {
	struct known list[256];
	int count;
};

static inline void see_cq(void *to, const struct nlattr *a)
{
	struct known_all *all = to;
	struct known *at = &all->list[all->count ? all->count - 1 : 0];

	switch (a->nla_type & NLA_TYPE_MASK) {
	case RDMA_NLDEV_ATTR_RES_CQ_ENTRY:
		if (all->count == 256)
			die("too many CQs");
		all->list[all->count++] = (struct known){ 0 };
		break;
	case RDMA_NLDEV_ATTR_RES_CQE:
		at->depth = u32(a);
		break;
	case RDMA_NLDEV_ATTR_RES_USECNT:
		at->users = u32(a);
		break;
	case RDMA_NLDEV_ATTR_RES_CQN:
		at->id = u32(a);
		break;
	case RDMA_NLDEV_ATTR_RES_PID:
		at->pid = u32(a);
		break;
	}
}

/* The entry of the kernel's own list for the one CQ of that thread and depth. */
static inline struct known known_cq(const char *device, pid_t maker, uint32_t depth)
{
	static const uint16_t none[] = { 0 };
	static const uint16_t nests[] = {
		RDMA_NLDEV_ATTR_RES_CQ, RDMA_NLDEV_ATTR_RES_CQ_ENTRY, 0
	};
	struct message devices = message_of(RDMA_NLDEV_CMD_GET, NLM_F_DUMP);
	struct message cqs = message_of(RDMA_NLDEV_CMD_RES_CQ_GET, NLM_F_DUMP);
	struct index_of wanted = { .name = device };
	struct known_all all = { .count = 0 };
	struct known found = { 0 };
	int i, matches = 0;

	dump(&devices, none, see_device, &wanted);
	if (!wanted.found)
		die("%s is not listed", device);
	attribute(&cqs, RDMA_NLDEV_ATTR_DEV_INDEX, &wanted.index, 4);
	dump(&cqs, nests, see_cq, &all);
	for (i = 0; i < all.count; i++) {
		if (all.list[i].pid == (uint32_t)maker && all.list[i].depth == depth) {
			found = all.list[i];
			matches++;
		}
	}
	if (matches != 1)
		die("%d CQs of %u entries by %d in %d of %s", matches, depth, maker,
		    all.count, device);
	return found;
}

/* ---- verbs ---- */

struct device {
	const char *name;
	bool siw;
	int fd, async;
	uint32_t pd;
};

/* One command of the write() ABI; without response, the command is sent as it is. */
static inline void verb(struct device *device, unsigned int number, const void *command,
			size_t size, void *response, size_t room)
{
	struct {
		struct ib_uverbs_cmd_hdr head;
		uint64_t body[32];
	} message = { .head = {
		.command = number,
		.in_words = (sizeof(struct ib_uverbs_cmd_hdr) + size) / 4,
		.out_words = room / 4,
	} };
	uint64_t where = (uintptr_t)response;
	size_t length = sizeof(struct ib_uverbs_cmd_hdr) + size;

	memcpy(message.body, command, size);
	/* Commands with a response begin with the address for it. */
	if (response)
		memcpy(message.body, &where, sizeof(where));
	if (write(device->fd, &message, length) != (ssize_t)length)
		die("%s: verb %u", device->name, number);
}

static inline void open_uverbs(struct device *device)
{
	char path[300], name[64];
	struct dirent *entry;
	DIR *all = opendir("/sys/class/infiniband_verbs");

	while (all && (entry = readdir(all))) {
		snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/%s/ibdev",
			 entry->d_name);
		if (!get(path, name, sizeof(name)) || strcmp(name, device->name))
			continue;
		snprintf(path, sizeof(path), "/dev/infiniband/%s", entry->d_name);
		device->fd = open(path, O_RDWR | O_CLOEXEC);
		if (device->fd < 0)
			die("%s", path);
		closedir(all);
		return;
	}
	errno = ENODEV;
	die("%s has no uverbs", device->name);
}

static inline struct device open_device(const char *name)
{
	struct device device = { .name = name, .siw = !strncmp(name, "siw", 3) };
	struct ib_uverbs_get_context get_context = { 0 };
	struct {
		struct ib_uverbs_get_context_resp base;
		struct siw_uresp_alloc_ctx siw;
	} context = { 0 };
	struct ib_uverbs_alloc_pd alloc_pd = { 0 };
	struct ib_uverbs_alloc_pd_resp pd = { 0 };

	up("lo", NULL);
	if (device.siw) {
		new_link(name, "siw", "lo");
	} else {
		up(NETDEV, ADDRESS);
		new_link(name, "rxe", NETDEV);
	}
	open_uverbs(&device);
	verb(&device, IB_USER_VERBS_CMD_GET_CONTEXT, &get_context, sizeof(get_context),
	     &context, device.siw ? sizeof(context) : sizeof(context.base));
	device.async = context.base.async_fd;
	if (fcntl(device.async, F_SETFL, O_NONBLOCK))
		die("async");
	verb(&device, IB_USER_VERBS_CMD_ALLOC_PD, &alloc_pd, sizeof(alloc_pd), &pd,
	     sizeof(pd));
	device.pd = pd.pd_handle;
	return device;
}

static inline void *map(struct device *device, uint64_t offset, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, device->fd,
			offset);

	if (at == MAP_FAILED)
		die("%s: mmap of %zu bytes at %" PRIx64, device->name, size, offset);
	return at;
}

static inline uint32_t load(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void store(uint32_t *at, uint32_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

struct cq {
	struct device *device;
	const char *name;
	uint64_t cookie;		/* by which an asynchronous event names it */
	uint32_t asked, depth, handle;
	bool by_ioctl;
	pid_t maker;
	char comm[16];			/* of that thread */
	struct known known;
	void *shared;
	uint32_t taken;			/* soft iWARP: free-running index */
	unsigned int posted, polled, failed, flushed, errors, reported;
};

struct qp {
	struct device *device;
	const char *name;
	uint64_t cookie;
	uint32_t handle, number, state;
	struct cq *scq, *rcq;
	pid_t maker;
	char comm[16];			/* of that thread */
	struct rxe_queue_buf *sq, *rq;
	struct siw_rqe *recvq;
	uint32_t slots, given;		/* of recvq */
	unsigned int ssn;
	unsigned int access_errors, others, reported;
};

union cq_response {
	struct mminfo rxe;
	struct siw_uresp_create_cq siw;
};

static inline void create_by_write(struct cq *cq, union cq_response *driver)
{
	struct ib_uverbs_create_cq command = {
		.user_handle = cq->cookie,
		.cqe = cq->asked,
		.comp_channel = -1,
	};
	struct {
		struct ib_uverbs_create_cq_resp base;
		union cq_response driver;
	} response = { 0 };

	verb(cq->device, IB_USER_VERBS_CMD_CREATE_CQ, &command, sizeof(command),
	     &response, sizeof(response));
	cq->handle = response.base.cq_handle;
	cq->depth = response.base.cqe;
	*driver = response.driver;
}

static inline void create_by_ioctl(struct cq *cq, union cq_response *driver)
{
	const struct ib_uverbs_attr wanted[] = {
		{ .attr_id = UVERBS_ATTR_CREATE_CQ_HANDLE },
		{ .attr_id = UVERBS_ATTR_CREATE_CQ_CQE, .len = 4, .data = cq->asked },
		{ .attr_id = UVERBS_ATTR_CREATE_CQ_USER_HANDLE, .len = 8,
		  .data = cq->cookie },
		{ .attr_id = UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, .len = 4 },
		{ .attr_id = UVERBS_ATTR_CREATE_CQ_RESP_CQE, .len = 4,
		  .data = (uintptr_t)&cq->depth },
		{ .attr_id = UVERBS_ATTR_UHW_OUT, .len = sizeof(*driver),
		  .data = (uintptr_t)driver },
	};
	const size_t count = sizeof(wanted) / sizeof(*wanted);
	char room[sizeof(struct ib_uverbs_ioctl_hdr) + sizeof(wanted)]
		__attribute__((aligned(8)));
	struct ib_uverbs_ioctl_hdr *head = (void *)room;
	struct ib_uverbs_attr *attrs = (void *)(room + sizeof(*head));
	size_t i;

	*head = (struct ib_uverbs_ioctl_hdr){
		.length = sizeof(room),
		.object_id = UVERBS_OBJECT_CQ,
		.method_id = UVERBS_METHOD_CQ_CREATE,
		.num_attrs = count,
		.driver_id = cq->device->siw ? RDMA_DRIVER_SIW : RDMA_DRIVER_RXE,
	};
	memcpy(attrs, wanted, sizeof(wanted));
	for (i = 0; i < count; i++)
		attrs[i].flags = UVERBS_ATTR_F_MANDATORY;
	if (ioctl(cq->device->fd, RDMA_VERBS_IOCTL, head))
		die("%s: RDMA_VERBS_IOCTL", cq->device->name);
	cq->handle = attrs[0].data;
}

static inline void create_cq(struct cq *cq)
{
	union cq_response driver = { { 0 } };

	cq->maker = tid();
	prctl(PR_GET_NAME, cq->comm);
	(cq->by_ioctl ? create_by_ioctl : create_by_write)(cq, &driver);
	if (cq->device->siw)
		cq->shared = map(cq->device, driver.siw.cq_key,
				 driver.siw.num_cqe * sizeof(struct siw_cqe) +
				 sizeof(struct siw_cq_ctrl));
	else
		cq->shared = map(cq->device, driver.rxe.offset, driver.rxe.size);
}

/* The thread that creates the CQs of a process. */
struct maker {
	const char *name;
	struct cq *cqs;
	int count;
	pthread_t thread;
	sem_t ready, leave;
};

static inline void *make_cqs(void *argument)
{
	struct maker *maker = argument;
	int i;

	prctl(PR_SET_NAME, maker->name);
	for (i = 0; i < maker->count; i++)
		create_cq(&maker->cqs[i]);
	sem_post(&maker->ready);
	while (sem_wait(&maker->leave) && errno == EINTR)
		;
	return NULL;
}

/*
 * By a thread of that name, not the main one, so that its pid differs from the process's
 * and its name from the program's.  It stays, because the kernel's list has no pid for
 * what dead threads created.
 */
static inline void create_cqs(struct maker *maker)
{
	if (sem_init(&maker->ready, 0, 0) || sem_init(&maker->leave, 0, 0))
		die("semaphore");
	errno = pthread_create(&maker->thread, NULL, make_cqs, maker);
	if (errno)
		die("thread");
	while (sem_wait(&maker->ready) && errno == EINTR)
		;
}

static inline void leave(struct maker *maker)
{
	sem_post(&maker->leave);
	errno = pthread_join(maker->thread, NULL);
	if (errno)
		die("thread");
}

static inline void create_qp(struct qp *qp, uint32_t sends, uint32_t receives)
{
	struct ib_uverbs_create_qp command = {
		.user_handle = qp->cookie,
		.pd_handle = qp->device->pd,
		.send_cq_handle = qp->scq->handle,
		.recv_cq_handle = qp->rcq->handle,
		.max_send_wr = sends,
		.max_recv_wr = receives,
		.max_send_sge = 1,
		.max_recv_sge = 1,
		.qp_type = IB_UVERBS_QPT_RC,
	};
	struct {
		struct ib_uverbs_create_qp_resp base;
		union {
			struct rxe_create_qp_resp rxe;
			struct siw_uresp_create_qp siw;
		} driver;
	} response = { 0 };

	verb(qp->device, IB_USER_VERBS_CMD_CREATE_QP, &command, sizeof(command),
	     &response, sizeof(response));
	qp->maker = tid();
	prctl(PR_GET_NAME, qp->comm);
	qp->handle = response.base.qp_handle;
	qp->number = response.base.qpn;
	if (qp->device->siw) {
		qp->slots = response.driver.siw.num_rqe;
		qp->recvq = map(qp->device, response.driver.siw.rq_key,
				qp->slots * sizeof(struct siw_rqe));
	} else {
		qp->sq = map(qp->device, response.driver.rxe.sq_mi.offset,
			     response.driver.rxe.sq_mi.size);
		qp->rq = map(qp->device, response.driver.rxe.rq_mi.offset,
			     response.driver.rxe.rq_mi.size);
	}
	qp->scq->known = known_cq(qp->device->name, qp->scq->maker, qp->scq->depth);
	qp->rcq->known = known_cq(qp->device->name, qp->rcq->maker, qp->rcq->depth);
}

static inline void modify(struct qp *qp, struct ib_uverbs_modify_qp *command)
{
	command->qp_handle = qp->handle;
	verb(qp->device, IB_USER_VERBS_CMD_MODIFY_QP, command, sizeof(*command), NULL, 0);
}

static inline void to_init(struct qp *qp)
{
	struct ib_uverbs_modify_qp command = {
		.attr_mask = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS,
		.qp_state = INIT,
		.port_num = 1,
		.qp_access_flags = REMOTE_WRITE,
	};

	modify(qp, &command);
}

static inline void to_error(struct qp *qp)
{
	struct ib_uverbs_modify_qp command = { .attr_mask = STATE, .qp_state = ERR };

	modify(qp, &command);
}

static inline uint32_t state_of(struct qp *qp)
{
	struct ib_uverbs_query_qp command = {
		.qp_handle = qp->handle,
		.attr_mask = STATE,
	};
	struct ib_uverbs_query_qp_resp response = { 0 };

	verb(qp->device, IB_USER_VERBS_CMD_QUERY_QP, &command, sizeof(command), &response,
	     sizeof(response));
	return response.qp_state;
}

/* The index of ADDRESS in the table of GIDs, as ::ffff:a.b.c.d; it fills by itself. */
static inline int gid_index(struct device *device, uint8_t gid[16])
{
	char path[128], text[64], wanted[64];
	int i;

	memset(gid, 0, 16);
	gid[10] = gid[11] = 0xff;
	inet_pton(AF_INET, ADDRESS, gid + 12);
	snprintf(wanted, sizeof(wanted), "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x",
		 gid[12], gid[13], gid[14], gid[15]);
	for (;;) {
		for (i = 0; i < 16; i++) {
			snprintf(path, sizeof(path),
				 "/sys/class/infiniband/%s/ports/1/gids/%d",
				 device->name, i);
			if (get(path, text, sizeof(text)) && !strcmp(text, wanted))
				return i;
		}
		nap(10 * MS);
	}
}

/* Connects `qp`, on soft RoCE, to the QP of that number on the same device. */
static inline void to_rts(struct qp *qp, uint32_t peer)
{
	struct ib_uverbs_modify_qp rtr = {
		.attr_mask = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN |
			     MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
		.qp_state = RTR,
		.path_mtu = MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.dest = { .is_global = 1, .port_num = 1, .hop_limit = 64 },
	};
	struct ib_uverbs_modify_qp rts = {
		.attr_mask = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN |
			     MAX_RD_ATOMIC,
		.qp_state = RTS,
		/* 4.096 us * 2^20: a busy host must not make it time out. */
		.timeout = 20,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	rtr.dest.sgid_index = gid_index(qp->device, rtr.dest.dgid);
	modify(qp, &rtr);
	modify(qp, &rts);
}

static inline void destroy_qp(struct qp *qp)
{
	struct ib_uverbs_destroy_qp command = { .qp_handle = qp->handle };
	struct ib_uverbs_destroy_qp_resp response = { 0 };

	verb(qp->device, IB_USER_VERBS_CMD_DESTROY_QP, &command, sizeof(command),
	     &response, sizeof(response));
	qp->reported = response.events_reported;
}

static inline void destroy_cq(struct cq *cq)
{
	struct ib_uverbs_destroy_cq command = { .cq_handle = cq->handle };
	struct ib_uverbs_destroy_cq_resp response = { 0 };

	verb(cq->device, IB_USER_VERBS_CMD_DESTROY_CQ, &command, sizeof(command),
	     &response, sizeof(response));
	cq->reported = response.async_events_reported;
}

/* ---- the queues that are shared with the driver ---- */

static inline void *slot(struct rxe_queue_buf *queue, uint32_t index)
{
	return queue->data + ((size_t)index << queue->log2_elem_size);
}

static inline void *produce(struct rxe_queue_buf *queue)
{
	uint32_t next = (queue->producer_index + 1) & queue->index_mask;

	if (next == load(&queue->consumer_index)) {
		errno = ENOSPC;
		die("work queue");
	}
	return slot(queue, queue->producer_index);
}

static inline void produced(struct rxe_queue_buf *queue)
{
	store(&queue->producer_index, (queue->producer_index + 1) & queue->index_mask);
}

/* A receive for a message without data. */
static inline void post_receive(struct qp *qp, uint64_t id)
{
	if (qp->device->siw) {
		struct siw_rqe *rqe = &qp->recvq[qp->given++ % qp->slots];

		rqe->id = id;
		rqe->num_sge = 0;
		__atomic_store_n(&rqe->flags, SIW_WQE_VALID, __ATOMIC_RELEASE);
	} else {
		struct rxe_recv_wqe *wqe = produce(qp->rq);

		memset(wqe, 0, sizeof(*wqe));
		wqe->wr_id = id;
		produced(qp->rq);
	}
	qp->rcq->posted++;
}

struct region {
	void *at;
	uint32_t lkey, rkey;
};

static inline struct region register_page(struct device *device)
{
	struct region region = {
		.at = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	};
	struct ib_uverbs_reg_mr command = {
		.start = (uintptr_t)region.at,
		.hca_va = (uintptr_t)region.at,
		.length = 4096,
		.pd_handle = device->pd,
		.access_flags = LOCAL_WRITE | REMOTE_WRITE,
	};
	struct ib_uverbs_reg_mr_resp response = { 0 };

	if (region.at == MAP_FAILED)
		die("page");
	verb(device, IB_USER_VERBS_CMD_REG_MR, &command, sizeof(command), &response,
	     sizeof(response));
	region.lkey = response.lkey;
	region.rkey = response.rkey;
	return region;
}

/* An RDMA write of eight bytes, which completes with a work completion. */
static inline void post_write(struct qp *qp, uint64_t id, const struct region *region,
			      uint32_t rkey, bool immediate)
{
	struct rxe_send_wqe *wqe = produce(qp->sq);

	memset(wqe, 0, sizeof(*wqe) + sizeof(struct rxe_sge));
	wqe->wr.wr_id = id;
	wqe->wr.opcode = immediate ? IB_UVERBS_WR_RDMA_WRITE_WITH_IMM :
				     IB_UVERBS_WR_RDMA_WRITE;
	wqe->wr.send_flags = SIGNALED;
	wqe->wr.wr.rdma.remote_addr = (uintptr_t)region->at + 2048;
	wqe->wr.wr.rdma.rkey = rkey;
	wqe->iova = (uintptr_t)region->at + 2048;
	wqe->ssn = qp->ssn++;
	wqe->dma.length = 8;
	wqe->dma.resid = 8;
	wqe->dma.num_sge = 1;
	wqe->dma.sge[0].addr = (uintptr_t)region->at;
	wqe->dma.sge[0].length = 8;
	wqe->dma.sge[0].lkey = region->lkey;
	produced(qp->sq);
	qp->scq->posted++;
}

static inline void ring(struct qp *qp)
{
	struct ib_uverbs_post_send command = {
		.qp_handle = qp->handle,
		.wqe_size = sizeof(struct ib_uverbs_send_wr),
	};
	struct ib_uverbs_post_send_resp response = { 0 };

	verb(qp->device, IB_USER_VERBS_CMD_POST_SEND, &command, sizeof(command),
	     &response, sizeof(response));
}

/* Waits until the driver has taken all that was posted. */
static inline void drained(struct rxe_queue_buf *queue)
{
	while (load(&queue->consumer_index) != queue->producer_index)
		nap(MS);
}

/* Takes one completion, and counts it; false if there is none. */
static inline bool poll_cq(struct cq *cq)
{
	uint32_t status;

	if (cq->device->siw) {
		struct siw_cqe *cqe = (struct siw_cqe *)cq->shared +
				      cq->taken % cq->depth;

		if (!(__atomic_load_n(&cqe->flags, __ATOMIC_ACQUIRE) & SIW_WQE_VALID))
			return false;
		status = cqe->status == SIW_WC_WR_FLUSH_ERR ? WC_FLUSHED : cqe->status;
		__atomic_store_n(&cqe->flags, 0, __ATOMIC_RELEASE);
		cq->taken++;
	} else {
		struct rxe_queue_buf *queue = cq->shared;
		uint32_t at = queue->consumer_index;
		struct ib_uverbs_wc *wc;

		if (at == load(&queue->producer_index))
			return false;
		wc = slot(queue, at);
		status = wc->status;
		store(&queue->consumer_index, (at + 1) & queue->index_mask);
	}
	cq->polled++;
	cq->failed += status != WC_SUCCESS;
	cq->flushed += status == WC_FLUSHED;
	return true;
}

/* Reads all asynchronous events that there are, and counts each where it belongs. */
static inline void read_events(struct device *device, struct cq *cqs, int ncqs,
			       struct qp *qps, int nqps)
{
	struct ib_uverbs_async_event_desc desc;
	int i;

	while (read(device->async, &desc, sizeof(desc)) == sizeof(desc)) {
		bool known = false;

		for (i = 0; i < ncqs && desc.event_type == CQ_ERR; i++) {
			if (desc.element == cqs[i].cookie) {
				cqs[i].errors++;
				known = true;
			}
		}
		for (i = 0; i < nqps && desc.event_type != CQ_ERR; i++) {
			if (desc.element == qps[i].cookie) {
				qps[i].access_errors += desc.event_type == QP_ACCESS_ERR;
				qps[i].others += desc.event_type != QP_ACCESS_ERR;
				known = true;
			}
		}
		if (!known)
			die("event %u of %llu", desc.event_type,
			    (unsigned long long)desc.element);
	}
	if (errno != EAGAIN)
		die("async");
}

static inline void say_cq(const char *run, const struct cq *cq)
{
	printf("{\"what\": \"cq\", \"run\": \"%s\", \"cq\": \"%s\", \"device\": \"%s\", "
	       "\"asked\": %u, \"depth\": %u, \"id\": %u, \"users\": %u, "
	       "\"listed_pid\": %u, \"maker\": %d, \"process\": %d, \"comm\": \"%s\", "
	       "\"posted\": %u, \"polled\": %u, \"failed\": %u, \"flushed\": %u, "
	       "\"errors\": %u, \"reported\": %u}\n",
	       run, cq->name, cq->device->name, cq->asked, cq->depth, cq->known.id,
	       cq->known.users, cq->known.pid, cq->maker, getpid(), cq->comm, cq->posted,
	       cq->polled, cq->failed, cq->flushed, cq->errors, cq->reported);
	fflush(stdout);
}

static inline void say_qp(const char *run, const struct qp *qp)
{
	printf("{\"what\": \"qp\", \"run\": \"%s\", \"qp\": \"%s\", \"device\": \"%s\", "
	       "\"number\": %u, \"state\": %u, \"scq\": %u, \"rcq\": %u, \"maker\": %d, "
	       "\"process\": %d, \"comm\": \"%s\", \"access_errors\": %u, "
	       "\"others\": %u, \"reported\": %u}\n",
	       run, qp->name, qp->device->name, qp->number, qp->state, qp->scq->known.id,
	       qp->rcq->known.id, qp->maker, getpid(), qp->comm,
	       qp->access_errors, qp->others, qp->reported);
	fflush(stdout);
}

#endif
