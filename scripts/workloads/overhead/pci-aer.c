// SPDX-License-Identifier: GPL-2.0-only
/*
 * pci-aer - have a correctable error reported, and count instructions
 *
 * usage: pci-aer BRIDGE, such as 0000:00:11.0: a Root Port with a device below it
 *
 * /dev/aer_inject simulates the error and calls the interrupt handler, whose thread has
 * a real-time priority: when the write returns, on the only processor, all is done.
 */
#define _GNU_SOURCE
#include "measure.h"
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

/* drivers/pci/pcie/aer_inject.c, which is private to the kernel's tree */
struct aer_error_inj {
	uint8_t bus, dev, fn, pad;
	uint32_t uncor_status, cor_status, header_log[4], domain;
};

#define BAD_TLP 0x40

static int injector;

static void inject(void *error)
{
	if (write(injector, error, sizeof(struct aer_error_inj)) < 0)
		die("/dev/aer_inject");
}

int main(int argc, char **argv)
{
	struct aer_error_inj error = { .cor_status = BAD_TLP };
	unsigned int domain, bus, device, function;
	char path[256];
	struct dirent *one;
	DIR *bridge;

	if (argc != 2) {
		fprintf(stderr, "usage: pci-aer BRIDGE\n");
		return 1;
	}
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", argv[1]);
	bridge = opendir(path);
	if (!bridge)
		die(path);
	while ((one = readdir(bridge)) && !error.bus)
		if (sscanf(one->d_name, "%4x:%2x:%2x.%1x", &domain, &bus, &device,
			   &function) == 4 && strlen(one->d_name) == 12) {
			error.domain = domain;
			error.bus = bus;
			error.dev = device;
			error.fn = function;
		}
	if (!error.bus) {
		fprintf(stderr, "%s has nothing below it\n", argv[1]);
		return 1;
	}
	injector = open("/dev/aer_inject", O_WRONLY);
	if (injector < 0)
		die("/dev/aer_inject");
	measure(10, inject, &error);
	return 0;
}
