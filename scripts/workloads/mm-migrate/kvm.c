// SPDX-License-Identifier: GPL-2.0-only
/*
 * Move pages of a process that has two virtual machines, whose notifiers are of the older
 * kind: they have no interval, and are told of everything.
 *
 * usage: kvm PAGES MODULES	MODULES: modprobe's -d directory
 */
#include "mirror.h"

#include <linux/kvm.h>
#include <spawn.h>
#include <sys/syscall.h>

static bool modprobe(const char *directory, const char *module)
{
	char *arguments[] = { "modprobe", "-d", (char *)directory, (char *)module, NULL };
	char *environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL };
	int status;
	pid_t pid;

	return !posix_spawn(&pid, "/sbin/modprobe", NULL, NULL, arguments,
			    environment) &&
	       waitpid(pid, &status, 0) == pid && !status;
}

int main(int argc, char **argv)
{
	size_t pages = argc == 3 ? strtoul(argv[1], NULL, 0) : 0;
	const char *vendor = "kvm_amd";
	struct moved m;
	int kvm, vms[2], i;
	char *at;

	if (!pages) {
		fprintf(stderr, "usage: kvm PAGES MODULES\n");
		return 1;
	}
	if (!modprobe(argv[2], vendor)) {
		vendor = "kvm_intel";
		if (!modprobe(argv[2], vendor))
			skip("neither kvm_amd nor kvm_intel loads on this processor");
	}
	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		skip("there is no /dev/kvm");
	at = map_pages(pages);
	move_to(at, pages, 0);
	for (i = 0; i < 2; i++) {
		vms[i] = ioctl(kvm, KVM_CREATE_VM, 0);
		if (vms[i] < 0)
			skip("KVM_CREATE_VM fails");
	}
	for (i = 0; i < 2; i++) {
		m = move_to(at, pages, (i + 1) % 2);
		say_moved("move", at, pages, (i + 1) % 2, &m);
	}
	/* It holds kvm, which is there for others to load and unload. */
	for (i = 0; i < 2; i++)
		close(vms[i]);
	close(kvm);
	if (syscall(SYS_delete_module, vendor, O_NONBLOCK))
		die("cannot unload %s", vendor);
	return 0;
}
