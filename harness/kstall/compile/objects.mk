# SPDX-License-Identifier: GPL-2.0-or-later
#
# Lists what kbuild makes of a directory, by kbuild's own reckoning: the objects, and
# the directories that it goes on to.  Run with srctree, srcroot, objtree and obj set,
# as the kernel's Makefile sets them; objtree has the configuration.

include $(srctree)/scripts/Makefile.build

PHONY += kstall-objects
kstall-objects:
	@printf 'object %s\n' $(real-obj-y) $(real-obj-m) $(lib-y)
	@printf 'folder %s\n' $(subdir-ym)

.PHONY: $(PHONY)
